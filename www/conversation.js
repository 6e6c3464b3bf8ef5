// @ts-check
/**
 * What was said so far, turn by turn. With a model that chats a turn is asked with all turns before it; stories stand for themselves.
 */

/** @import { Message } from './pkg/index.js' */

/** What shows a turn. @typedef {{ begin: (given: string) => void, remove: () => void }} Shown */
/** @typedef {{ again: () => void, edit: (given: string) => void }} Actions what can be asked of a turn */
/**
 * A turn; its answer is there once the model has finished it.
 * @template {Shown} Entry
 * @typedef {{ given: string, answer: string | undefined, entry: Entry }} Turn
 */

/** @template {Shown} Entry */
export class Conversation {
  /** @type {Turn<Entry>[]} */
  #turns = [];
  #isChat;
  #show;
  #answer;

  /**
   * @param {boolean} isChat
   * @param {(given: string, isChat: boolean, actions: Actions) => Entry} show makes what shows a turn
   * @param {(turn: Turn<Entry>) => void} answer called when a turn is to be written again
   */
  constructor(isChat, show, answer) {
    this.#isChat = isChat;
    this.#show = show;
    this.#answer = answer;
  }

  /** A new turn at the end. @param {string} given @returns {Turn<Entry>} */
  add(given) {
    const again = (/** @type {string} */ text) => {
      this.#return(turn, text);
      this.#answer(turn);
    };
    const entry = this.#show(given, this.#isChat, { again: () => again(turn.given), edit: again });
    /** @type {Turn<Entry>} */
    const turn = { given, answer: undefined, entry };
    this.#turns.push(turn);
    return turn;
  }

  /** What the model is asked for a turn. @param {Turn<Entry>} [turn] a new one unless told @param {string} [given] @returns {string | Message[]} */
  promptOf(turn, given = turn?.given ?? '') {
    if (!this.#isChat) return given;
    const before = turn === undefined ? this.#turns : this.#turns.slice(0, this.#turns.indexOf(turn));
    const said = before.flatMap(({ given, answer }) =>
      answer === undefined ? [] : [{ role: 'user', content: given }, { role: 'assistant', content: answer }],
    );
    return [...said, { role: 'user', content: given }];
  }

  /** @param {Turn<Entry>} turn */
  remove(turn) {
    this.#turns = this.#turns.filter((each) => each !== turn);
    turn.entry.remove();
  }

  /** Forgets everything. */
  clear() {
    for (const turn of [...this.#turns]) this.remove(turn);
  }

  /** Back to a turn: what followed from its answer is gone. @param {Turn<Entry>} turn @param {string} given */
  #return(turn, given) {
    if (this.#isChat) for (const later of this.#turns.slice(this.#turns.indexOf(turn) + 1)) this.remove(later);
    turn.given = given;
    turn.answer = undefined;
    turn.entry.begin(given);
  }
}
