// @ts-check
/** What the pages do that needs no browser: conversations, and the Chinese of their texts. */
import assert from 'node:assert/strict';
import { readFile, readdir } from 'node:fs/promises';
import path from 'node:path';
import { describe, test } from 'node:test';
import { pageNames, siteFolder } from '../../scripts/site.mjs';
import { Conversation } from '../../www/conversation.js';
import { zh } from '../../www/words.zh.js';

describe('a conversation', () => {
  /** @param {boolean} isChat */
  function begin(isChat) {
    /** @type {string[]} */
    const log = [];
    /** @type {import('../../www/conversation.js').Actions[]} */
    const actions = [];
    const conversation = new Conversation(
      isChat,
      (given, _, asked) => {
        actions.push(asked);
        return { begin: (text) => log.push(`begin ${text}`), remove: () => log.push(`remove ${given}`) };
      },
      (turn) => log.push(`answer ${turn.given}`),
    );
    return { conversation, log, actions };
  }

  test('asks with all finished turns before', () => {
    const { conversation } = begin(true);
    const one = conversation.add('one');
    assert.deepEqual(conversation.promptOf(one), [{ role: 'user', content: 'one' }]);
    one.answer = 'ONE';
    const two = conversation.add('two');
    const said = [{ role: 'user', content: 'one' }, { role: 'assistant', content: 'ONE' }];
    assert.deepEqual(conversation.promptOf(two), [...said, { role: 'user', content: 'two' }]);
    assert.deepEqual(conversation.promptOf(undefined, 'new'), [...said, { role: 'user', content: 'new' }]);
  });
  test('an edited turn takes what followed with it, and is answered anew', () => {
    const { conversation, log, actions } = begin(true);
    for (const text of ['one', 'two', 'three']) conversation.add(text).answer = text.toUpperCase();
    actions[1]?.edit('zwei');
    assert.deepEqual(log, ['remove three', 'begin zwei', 'answer zwei']);
    assert.deepEqual(conversation.promptOf(undefined, 'next'), [
      { role: 'user', content: 'one' }, { role: 'assistant', content: 'ONE' }, { role: 'user', content: 'next' },
    ]);
    actions[0]?.again();
    assert.deepEqual(log.slice(3), ['remove two', 'begin one', 'answer one']);
  });
  test('stories stand for themselves', () => {
    const { conversation, log, actions } = begin(false);
    const one = conversation.add('Once');
    one.answer = ' upon a time';
    const two = conversation.add('Lily');
    assert.equal(conversation.promptOf(two), 'Lily');
    actions[0]?.again();
    assert.deepEqual(log, ['begin Once', 'answer Once']);
    conversation.clear();
    assert.deepEqual(log.slice(2), ['remove Once', 'remove Lily']);
  });
});

describe('Chinese', () => {
  /** Texts of the markup that are marked to be translated. @param {string} html */
  function* marked(html) {
    for (const [tag] of html.matchAll(/<[a-z][^>]*>/g)) {
      const marks = /** @type {const} */ ([['data-t-label', 'aria-label'], ['data-t-placeholder', 'placeholder'], ['data-t-title', 'title']]);
      for (const [mark, attribute] of marks) {
        if (new RegExp(` ${mark}[ />]`).test(tag)) yield new RegExp(` ${attribute}="([^"]*)"`).exec(tag)?.[1] ?? tag;
      }
    }
    for (const [, , text = ''] of html.matchAll(/<[a-z][^>]* data-t( [^>]*)?>([^<]*)</g)) yield text.trim().replaceAll(/\s+/g, ' ');
  }

  test('is there for everything in the markup', async () => {
    for (const name of pageNames) {
      const texts = [...marked(await readFile(path.join(siteFolder, name), 'utf8'))];
      assert.ok(texts.length > 40, name);
      assert.deepEqual(texts.filter((text) => !Object.hasOwn(zh, text)), [], name);
    }
  });
  test('is there for what modules say in place', async () => {
    const names = (await readdir(siteFolder, { recursive: true })).filter((name) => /^(bench[\\/])?\w+\.js$/.test(name));
    const texts = [];
    for (const name of names) {
      const text = await readFile(path.join(siteFolder, name), 'utf8');
      for (const [, found = ''] of text.matchAll(/\b(?:put|t|quietButton|announce|showWhenEmpty)\((?:[\w.#]+, )?'([^']+)'/g)) texts.push(found);
    }
    assert.ok(texts.length > 40);
    assert.deepEqual(texts.filter((text) => !Object.hasOwn(zh, text)), []);
  });
  test('has the places of its English', () => {
    const places = (/** @type {string} */ text) => [...text.matchAll(/\{\w+\}/g)].map(String).sort().join();
    for (const [english, chinese] of Object.entries(zh)) assert.equal(places(chinese), places(english), english);
  });
});
