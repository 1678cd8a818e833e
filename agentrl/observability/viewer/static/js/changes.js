// Which tokens of an answer another answer does not have: a longest common subsequence, like a diff of lines.

const MOST = 4e6; // cells of the table; beyond it, all between the common beginning and end counts as new

/** ids [1, 2, 9, 3] beside [1, 2, 3] -> [false, false, true, false]: whether each of the first is new. */
export function newTokens(ids, others) {
  const fresh = new Array(ids.length).fill(true);
  let first = 0;
  while (first < ids.length && first < others.length && ids[first] === others[first]) fresh[first++] = false;
  let [end, otherEnd] = [ids.length, others.length];
  while (end > first && otherEnd > first && ids[end - 1] === others[otherEnd - 1]) ((fresh[--end] = false), otherEnd--);
  const [n, m] = [end - first, otherEnd - first];
  if (n * m === 0 || n * m > MOST) return fresh;
  const width = m + 1;
  const longest = new Uint16Array((n + 1) * width); // longest[i, j]: common tokens of what begins at i and at j
  for (let i = n - 1; i >= 0; i--) {
    for (let j = m - 1; j >= 0; j--) {
      const equal = ids[first + i] === others[first + j];
      longest[i * width + j] = equal
        ? longest[(i + 1) * width + j + 1] + 1
        : Math.max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
    }
  }
  for (let i = 0, j = 0; i < n && j < m;) {
    if (ids[first + i] === others[first + j]) ((fresh[first + i++] = false), j++);
    else if (longest[(i + 1) * width + j] >= longest[i * width + j + 1]) i++;
    else j++;
  }
  return fresh;
}
