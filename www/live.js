// @ts-check
/**
 * The live chart: tokens a second and tokens a pass while the model writes, each over the last second.
 */
import { drawLines, showKey } from './chart.js';
import { byId } from './elements.js';
import { t } from './language.js';

const host = byId('live-chart', HTMLElement);
const key = byId('live-key', HTMLElement);

/** How often a point is added, and how much time it looks back on, in milliseconds. */
const INTERVAL = 200;
const WINDOW = 1000;

/** @type {{ seconds: number[], speed: number[], perPass: number[] }} */
let points = { seconds: [], speed: [], perPass: [] };
/** @type {ReturnType<typeof drawLines> | undefined} */
let chart;

function show() {
  const series = [{ name: t('tokens/s'), values: points.speed }, { name: t('tokens/pass'), values: points.perPass }];
  chart = drawLines(host, points.seconds, series, { height: 130, right: [t('tokens/pass')], marks: false });
  showKey(key, series);
}

/** Begins a new chart. @returns {(count: number) => void} to be called with the number of tokens of each chunk, which is what one pass wrote */
export function startChart() {
  points = { seconds: [], speed: [], perPass: [] };
  show();
  /** Passes of the last second. @type {{ at: number, tokens: number }[]} */
  let recent = [];
  let began = NaN;
  let shown = 0;
  return (tokens) => {
    const now = performance.now();
    if (Number.isNaN(began)) began = now;
    recent = [...recent.filter(({ at }) => now - at <= WINDOW), { at: now, tokens }];
    const [first] = recent;
    if (now - shown < INTERVAL || recent.length < 2 || first === undefined) return;
    shown = now;
    const written = recent.reduce((sum, each) => sum + each.tokens, 0);
    points.seconds.push((now - began) / 1000);
    // What the first pass wrote was there when its time began.
    points.speed.push((1000 * (written - first.tokens)) / (now - first.at));
    points.perPass.push(written / recent.length);
    chart?.setData([points.seconds, points.speed, points.perPass]);
  };
}

matchMedia('(prefers-color-scheme: dark)').addEventListener('change', show);
addEventListener('languagechange', show);
show();
