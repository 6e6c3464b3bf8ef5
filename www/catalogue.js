// @ts-check
/**
 * The models that the pages offer by name.
 */

/** @typedef {{ source: string | URL, name: string, chats: boolean }} Offer */

export const catalogue = {
  /** @type {Offer} */
  stories: { source: new URL('./models/stories260K/stories260K-q8_0.gguf', import.meta.url), name: 'Stories 260K', chats: false },
  /** @type {Offer} */
  smollm: { source: 'HuggingFaceTB/SmolLM2-135M-Instruct', name: 'SmolLM2', chats: true },
  /** @type {Offer} */
  qwen: { source: 'Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF:Q4_K_M', name: 'Qwen2.5-Coder', chats: true },
};
