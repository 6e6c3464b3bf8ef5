import { load } from 'draftree';

const model = await load('/model/stories260K-q8_0.gguf');
const { tokens } = await model.generate('Once upon a time', { maxTokens: 24 }).result;
document.querySelector('output').value = JSON.stringify(tokens);
