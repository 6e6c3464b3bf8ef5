import { load } from '/node_modules/draftree/index.js';

const output = document.querySelector('output');
try {
  const model = await load('/model/stories260K-q8_0.gguf');
  const { tokens } = await model.generate('Once upon a time', { maxTokens: 24 }).result;
  output.value = JSON.stringify(tokens);
} catch (error) {
  output.value = `${error.code}: ${error.message}`;
}
