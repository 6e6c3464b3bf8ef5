// @ts-check
/**
 * The panel of numbers: counted on the page while the model writes, taken from the result when it has written.
 */
import { byId } from './elements.js';
import { amount, duration, megabytes, rate } from './figures.js';
import { put, putPlain } from './language.js';

/** @import { GenerationResult, ModelInfo } from './pkg/index.js' */

const speed = byId('speed', HTMLElement);
const tokensPerPass = byId('tokens-per-pass', HTMLElement);
const tokens = byId('tokens', HTMLElement);
const passes = byId('passes', HTMLElement);
const firstToken = byId('first-token', HTMLElement);
const reused = byId('reused', HTMLElement);
const adapter = byId('adapter', HTMLElement);
const facts = byId('facts', HTMLElement);

/** How often the numbers change while the model writes, in milliseconds: fast enough to be live, slow enough to be read. */
const interval = 250;

/** Begin to count. @returns {(count: number) => void} to be called with the number of tokens of each chunk, which is what one pass wrote */
export function startCounting() {
  const started = performance.now();
  let first = { at: 0, tokens: 0 };
  let shown = 0;
  let written = 0;
  let chunks = 0;
  for (const element of [speed, tokensPerPass, tokens, passes, firstToken, reused]) putPlain(element, '–');
  return (more) => {
    const now = performance.now();
    if (chunks === 0) {
      first = { at: now, tokens: more };
      firstToken.textContent = duration(now - started);
    }
    written += more;
    chunks++;
    if (now - shown < interval) return;
    shown = now;
    tokens.textContent = written.toLocaleString('en');
    passes.textContent = chunks.toLocaleString('en');
    tokensPerPass.textContent = (written / chunks).toFixed(2);
    if (now > first.at) speed.textContent = rate(((written - first.tokens) * 1000) / (now - first.at));
  };
}

/** @param {GenerationResult} result */
export function showResult({ usage, stats }) {
  tokens.textContent = usage.completionTokens.toLocaleString('en');
  put(reused, '{reused} of {all}', { reused: usage.reusedPromptTokens, all: usage.promptTokens });
  passes.textContent = stats.passes.toLocaleString('en');
  firstToken.textContent = duration(stats.timeToFirstTokenMs);
  if (stats.passes > 0) tokensPerPass.textContent = stats.tokensPerPass.toFixed(2);
  if (stats.tokensPerSecond > 0) speed.textContent = rate(stats.tokensPerSecond);
}

/** @param {ModelInfo} info */
export function showModel(info) {
  const { description, software } = info.adapter;
  const values = { name: description };
  if (description === '') put(adapter, 'GPU: one that the browser does not name');
  else put(adapter, software ? 'GPU: {name} (software)' : 'GPU: {name}', values);
  put(facts, '{layers} layers of {size} · {weights} weights as {kind} · {memory} on the GPU · context {context}', {
    layers: info.layers,
    size: info.hiddenSize,
    weights: amount(info.parameters),
    kind: info.quantisation,
    memory: megabytes(info.weightBytes),
    context: info.contextLength.toLocaleString('en'),
  });
}
