// @ts-check
/**
 * Charts in the page's own colours: bars with quartiles, lines with bands, by uPlot. A chart is a picture of a table that stands beside it,
 * so it is hidden from screen readers.
 */
import uPlot from './vendor/uplot.js';

/** @import { Spread } from './bench/summary.js' */
/** @typedef {{ name: string, spreads: (Spread | undefined)[], isOther?: boolean }} BarSeries one bar for every category */
/** @typedef {{ name: string, values: (number | null)[], isOther?: boolean }} LineSeries */

const COLOURS = ['--by-ngram', '--leaf', '--by-recycling', '--gold', '--bough', '--fault'];

/** @param {string} name of a custom property */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** What all charts share. @param {HTMLElement} host @param {number} height */
function frame(host, height) {
  const line = { stroke: colour('--line'), width: 1 };
  const axis = { stroke: colour('--soft'), grid: line, ticks: line, font: '12px system-ui' };
  return { axis, width: Math.max(240, host.clientWidth), height, cursor: { show: false }, legend: { show: false } };
}

/** Replaces what is in the host. @param {HTMLElement} host @param {uPlot.Options} options @param {uPlot.AlignedData} data */
function draw(host, options, data) {
  host.replaceChildren();
  host.ariaHidden = 'true';
  const chart = new uPlot(options, data, host);
  const observer = new ResizeObserver(() => {
    if (!host.contains(chart.root)) return observer.disconnect();
    if (host.clientWidth > 0 && host.clientWidth !== chart.width) chart.setSize({ width: host.clientWidth, height: chart.height });
  });
  observer.observe(host);
  return chart;
}

/**
 * A group of bars for each category, with the quartiles as a line through the end of each bar.
 * @param {HTMLElement} host @param {readonly string[]} categories @param {readonly BarSeries[]} series
 */
export function drawBars(host, categories, series) {
  const { axis, ...shared } = frame(host, 220);
  const bars = series.map(({ spreads }) => spreads.map((spread) => spread?.median ?? null));
  const top = Math.max(0, ...series.flatMap(({ spreads }) => spreads.map((spread) => spread?.high ?? 0)));
  const width = 0.7 / series.length;
  const place = (/** @type {number} */ at) => (at - (series.length - 1) / 2) * width;
  const paths = series.map((_, at) => (/** @type {uPlot} */ chart, /** @type {number} */ index) => barPath(chart, index, place(at), width * 0.9));
  /** @param {uPlot} chart */
  const quartiles = (chart) => {
    const { ctx } = chart;
    ctx.save();
    ctx.strokeStyle = colour('--ink');
    ctx.lineWidth = 1.5 * devicePixelRatio;
    ctx.beginPath();
    for (const [at, { spreads }] of series.entries()) {
      for (const [category, spread] of spreads.entries()) {
        if (spread === undefined || spread.count < 2) continue;
        const x = chart.valToPos(category + place(at), 'x', true);
        ctx.moveTo(x, chart.valToPos(spread.low, 'y', true));
        ctx.lineTo(x, chart.valToPos(spread.high, 'y', true));
      }
    }
    ctx.stroke();
    ctx.restore();
  };
  draw(
    host,
    {
      ...shared,
      scales: { x: { time: false, range: [-0.5, categories.length - 0.5] }, y: { range: [0, top * 1.08 || 1] } },
      axes: [
        { ...axis, grid: { show: false }, splits: () => categories.map((_, i) => i), values: () => shortened(categories, host.clientWidth), size: 28 },
        { ...axis, size: 44 },
      ],
      series: [
        {},
        ...series.map(({ name, isOther }, at) => ({
          label: name,
          fill: fade(colour(COLOURS[at % COLOURS.length] ?? '--leaf'), isOther ? 0.35 : 1),
          paths: /** @type {any} */ (paths[at]),
          points: { show: false },
        })),
      ],
      hooks: { draw: [quartiles] },
    },
    /** @type {uPlot.AlignedData} */ ([categories.map((_, i) => i), ...bars]),
  );
}

/** @param {uPlot} chart @param {number} index @param {number} offset @param {number} width both in categories */
function barPath(chart, index, offset, width) {
  const fill = new Path2D();
  const bottom = chart.valToPos(0, 'y', true);
  for (const [category, value] of (chart.data[index] ?? []).entries()) {
    if (value === null || value === undefined) continue;
    const left = chart.valToPos(category + offset - width / 2, 'x', true);
    const right = chart.valToPos(category + offset + width / 2, 'x', true);
    const top = chart.valToPos(value, 'y', true);
    fill.rect(left, top, Math.max(1, right - left), bottom - top);
  }
  return { fill };
}

/** Names that fit below their bars. @param {readonly string[]} names @param {number} width */
function shortened(names, width) {
  const most = Math.max(4, Math.floor((width - 60) / names.length / 6.5));
  return names.map((name) => (name.length > most ? `${name.slice(0, most - 1)}…` : name));
}

/** @param {string} of a colour @param {number} opacity */
const fade = (of, opacity) => (opacity < 1 ? `color-mix(in srgb, ${of} ${opacity * 100}%, transparent)` : of);

/**
 * Lines over numbers.
 * @param {HTMLElement} host @param {readonly number[]} xs @param {readonly LineSeries[]} series
 * @param {{ most?: number, height?: number, right?: readonly string[], marks?: boolean }} [options] `right` names lines with an axis of their own; `marks` are on each point
 */
export function drawLines(host, xs, series, { most, height = 220, right = [], marks = xs.length < 20 } = {}) {
  const { axis, ...shared } = frame(host, height);
  const range = /** @type {uPlot.Range.Function} */ ((_, _low, high) => [0, most ?? ((high || 1) * 1.08)]);
  const isRight = (/** @type {string} */ name) => right.includes(name);
  return draw(
    host,
    {
      ...shared,
      scales: { x: { time: false }, y: { range }, ...(right.length > 0 && { right: { range } }) },
      axes: [
        { ...axis, grid: { show: false }, size: 28, ...(marks && { splits: () => [...xs] }) },
        { ...axis, size: 44 },
        ...(right.length > 0 ? [{ ...axis, scale: 'right', side: /** @type {const} */ (1), size: 36, grid: { show: false } }] : []),
      ],
      series: [
        {},
        ...series.map(({ name, isOther }, at) => ({
          label: name,
          scale: isRight(name) ? 'right' : 'y',
          stroke: colour(COLOURS[at % COLOURS.length] ?? '--leaf'),
          width: 2,
          ...(isOther || isRight(name) ? { dash: [5, 4] } : {}),
          points: { show: marks, size: 6 },
          spanGaps: true,
        })),
      ],
    },
    /** @type {uPlot.AlignedData} */ ([[...xs], ...series.map(({ values }) => values)]),
  );
}

/** The names of series with the colours that charts give them. @param {HTMLElement} list @param {readonly { name: string, isOther?: boolean }[]} series */
export function showKey(list, series) {
  list.replaceChildren(
    ...series.map(({ name, isOther }, at) => {
      const item = document.createElement('li');
      const sample = document.createElement('span');
      sample.className = `sample colour-${at % COLOURS.length}${isOther ? ' other' : ''}`;
      item.append(sample, name);
      return item;
    }),
  );
}
