import { DraftreeError, load, modelCache, type GenerationStats, type LoadProgress, type Model } from 'draftree';
import { draftree } from 'draftree/ai-sdk';

const report = ({ stage, loaded, total }: LoadProgress): string => `${stage} ${loaded / total}`;

/** What most pages do, seen by the compiler alone. */
export async function write(prompt: string): Promise<GenerationStats | undefined> {
  const model: Model = await load('org/name', { onProgress: report, heads: null });
  try {
    const generation = model.generate([{ role: 'user', content: prompt }], { maxTokens: 8, draft: ['ngram', 'recycling'] });
    for await (const { text, sources } of generation) console.log(text, sources);
    const answer = await model.chat.completions.create({ messages: [{ role: 'user', content: prompt }] });
    const session = await model.session({ temperature: 0.5 });
    const again: string = await session.prompt(answer.choices[0].message.content);
    const { warnings } = await draftree(model).doGenerate({ prompt: [{ role: 'user', content: again }] });
    console.log(warnings.length, await modelCache.list());
    return (await generation.result).stats;
  } catch (error) {
    if (error instanceof DraftreeError && error.code === 'busy') return undefined;
    throw error;
  } finally {
    await model.dispose();
  }
}

// @ts-expect-error: a misspelt option is found
void load('org/name', { onProgres: report });
