// @ts-check
/**
 * A draft tree as nested lists that grow to the right: every guess that a pass verified, who made it, how probable its path was thought, and
 * the path that was right.
 */
import { create } from './elements.js';
import { piece } from './sources.js';

/** @import { DraftNode, TokenSource } from './pkg/index.js' */

/**
 * The guesses of a pass, and behind the path that was right the token that the model chose itself.
 * @param {readonly DraftNode[]} nodes the root first @param {string} [own] text of that token; none where the text ended before it
 */
export function treeElement(nodes, own) {
  const last = nodes.reduce((found, { accepted }, index) => (accepted ? index : found), 0);
  /** @param {number} index @returns {HTMLElement} */
  const branch = (index) => {
    const node = /** @type {DraftNode} */ (nodes[index]);
    const element = create('li', { className: 'branch' });
    const box = token(node.source, node.text, index === 0 ? undefined : node.probability);
    box.classList.toggle('accepted', node.accepted && index > 0);
    box.classList.toggle('root', index === 0);
    const children = nodes.flatMap(({ parent, verified }, child) => (child > 0 && parent === index && verified ? [branch(child)] : []));
    if (index === last && own !== undefined) {
      const item = create('li', { className: 'branch' });
      const chosen = token('plain', own);
      chosen.classList.add('accepted');
      item.append(chosen);
      children.unshift(item);
    }
    element.append(box);
    if (children.length > 0) {
      const list = create('ul');
      list.append(...children);
      element.append(list);
    }
    return element;
  };
  const tree = create('ul', { className: 'draft-tree' });
  tree.append(branch(0));
  return tree;
}

/** @param {TokenSource} source @param {string} text @param {number} [probability] */
function token(source, text, probability) {
  const box = piece(source);
  box.classList.add('token');
  box.append(create('span', { className: 'word', text: visible(text) }));
  if (probability !== undefined) box.append(create('small', { text: `${Math.round(100 * probability)} %` }));
  return box;
}

/** A token's text, with what cannot be seen made visible. @param {string} text */
const visible = (text) => text.replaceAll(' ', '␣').replaceAll('\n', '↵') || '·';
