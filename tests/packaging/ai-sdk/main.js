import { generateText, streamText } from 'ai';
import { load } from 'draftree';
import { draftree } from 'draftree/ai-sdk';

const model = draftree(await load('/model/stories260K-q8_0.gguf'));
const request = { model, prompt: 'Once upon a time', maxOutputTokens: 24 };

const { text, usage, finishReason, providerMetadata } = await generateText(request);
const streamed = streamText(request);
let pieces = '';
for await (const piece of streamed.textStream) pieces += piece;

document.querySelector('output').value = JSON.stringify({
  text,
  streamed: pieces,
  outputTokens: [usage.outputTokens, (await streamed.usage).outputTokens],
  finishReasons: [finishReason, await streamed.finishReason],
  tokensPerPass: [providerMetadata.draftree.tokensPerPass, (await streamed.providerMetadata).draftree.tokensPerPass],
});
