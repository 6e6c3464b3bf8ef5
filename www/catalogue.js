// @ts-check
/**
 * The models that the pages offer by name.
 */

/** @typedef {{ source: string | URL, heads?: URL, name: string, chats: boolean }} Offer `heads` where they do not lie beside the model */

const models = new URL('./models/', import.meta.url);

export const catalogue = {
  /** @type {Offer} */
  stories: { source: new URL('stories260K/stories260K-q8_0.gguf', models), name: 'Stories 260K', chats: false },
  /** @type {Offer} */
  smollm: {
    source: 'HuggingFaceTB/SmolLM2-135M-Instruct',
    heads: new URL('SmolLM2-135M-Instruct/SmolLM2-135M-Instruct.heads.safetensors', models),
    name: 'SmolLM2',
    chats: true,
  },
  /** @type {Offer} */
  qwen: { source: 'Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF:Q4_K_M', name: 'Qwen2.5-Coder', chats: true },
};
