// Colours and dashes of runs. A run differs from the next one by its dashes too, for those who see no colours.

const NAMES = ["--run-0", "--run-1", "--run-2", "--run-3", "--run-4", "--run-5"];
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 2], [14, 4]];

export function runStyle(index) {
  return {
    variable: NAMES[index % NAMES.length],
    colour: colour(NAMES[index % NAMES.length]),
    dash: DASHES[index % DASHES.length],
  };
}

/** What a variable of the style sheet is now, dark or light: "--muted" -> "rgb(87, 96, 106)". */
export function colour(variable) {
  const probe = document.createElement("i");
  probe.style.color = `var(${variable})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
