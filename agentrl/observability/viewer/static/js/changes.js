// Which tokens of an answer another answer does not have: the shortest edit from one to the other, like a diff of lines.

const MOST = 4000; // edits that are looked for: 2 * MOST² bytes and half a second at most

/**
 * ids [1, 2, 9, 3] beside [1, 2, 3] -> {fresh: [false, false, true, false], gaveUp: null}: whether each is new.
 * Where the two differ too much, `gaveUp` is the range [from, to) of tokens that were not compared (and count as new).
 */
export function newTokens(ids, others) {
  const fresh = new Array(ids.length).fill(true);
  let first = 0;
  while (first < ids.length && first < others.length && ids[first] === others[first]) fresh[first++] = false;
  let [end, otherEnd] = [ids.length, others.length];
  while (end > first && otherEnd > first && ids[end - 1] === others[otherEnd - 1]) ((fresh[--end] = false), otherEnd--);
  // A token that one side lacks is an edit in any case: only the others need to be compared.
  const [here, there] = [new Set(ids.slice(first, end)), new Set(others.slice(first, otherEnd))];
  const places = [...ids.keys()].slice(first, end).filter((i) => there.has(ids[i]));
  const kept = others.slice(first, otherEnd).filter((id) => here.has(id));
  const { same, reached } = common(
    places.map((i) => ids[i]),
    kept,
  );
  for (const i of same) fresh[places[i]] = false;
  return { fresh, gaveUp: reached < places.length ? [places[reached], end] : null };
}

/**
 * Myers' greedy algorithm ("An O(ND) difference algorithm", 1986): with d edits, the furthest place on each diagonal.
 * The places in a that are common with b, and how far a was compared.
 */
function common(a, b) {
  const rounds = []; // rounds[d][i]: the furthest x on diagonal x - y = 2 i - d after d edits
  const down = (last, i, d) => i === 0 || (i !== d && last[i - 1] < last[i]); // a token of b more; else one of a
  let best = null; // the place that is furthest along both
  for (let d = 0; d <= MOST; d++) {
    const [last, now] = [rounds[d - 1], new Int32Array(d + 1)];
    rounds.push(now);
    best = [d, 0, -1];
    for (let i = 0; i <= d; i++) {
      const k = 2 * i - d;
      let x = d === 0 ? 0 : down(last, i, d) ? last[i] : last[i - 1] + 1;
      while (x < a.length && x - k < b.length && a[x] === b[x - k]) x += 1;
      now[i] = x;
      if (2 * x - k > best[2] && x <= a.length && x - k <= b.length) best = [d, i, 2 * x - k];
    }
    if (best[2] === a.length + b.length) break;
  }
  const same = [];
  let [d, i, far] = best;
  const reached = far === a.length + b.length ? a.length : rounds[d][i];
  for (; d >= 0; d--) {
    const [last, end] = [rounds[d - 1], rounds[d][i]];
    const fell = d > 0 && down(last, i, d);
    if (d && !fell) i -= 1;
    const from = d === 0 ? 0 : fell ? last[i] : last[i] + 1;
    for (let x = end - 1; x >= from; x--) same.push(x);
  }
  return { same, reached };
}
