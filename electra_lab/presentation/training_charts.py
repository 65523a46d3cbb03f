"""Charts of the numbers that describe the course of a training."""

from collections.abc import Mapping

from electra_lab.analysis.records import Records, of_split, points
from electra_lab.presentation import charts

Lines = dict[str, charts.Points]
COURSE = {  # by the key of the records
    "learning_rate": "Learning rate",
    "gradient_norm": "Gradient norm before and after clipping",
    "tokens_per_second": "Tokens a second",
    "peak_memory_bytes": "Peak memory, GB",
    "batch_size": "Rows of a step",  # recorded if they change
    "generator_z_loss": "z-loss of the generator: mean squared log-normalizer",
    "discriminator_z_loss": "z-loss of the discriminator: mean squared log-normalizer",
}
NORMS = {  # are drawn with the norm of all parameters
    "clipped_gradient_norm": "clipped", "generator_gradient_norm": "generator",
    "discriminator_gradient_norm": "discriminator",
}  # fmt: skip
SCALE = {"peak_memory_bytes": 1e-9}


def training_charts(runs: Mapping[str, Records], first: Mapping[str, str] = {}) -> list[charts.Chart]:
    """Draw each of these numbers, and every scheduled one, that was recorded more than once.

    runs   the records of each run that is drawn, by its label
    first  further numbers of training with their titles
    """
    scheduled = dict[str, str]()
    for records in runs.values():
        for record in of_split(records, "train"):
            scheduled |= {key: key for key in record if "." in key}  # the place of a number in the config
    found = []
    for key, title in {**first, **COURSE, **scheduled}.items():
        lines = Lines()
        for label, records in runs.items():
            line = points(records, "train", key)
            lines[label] = [(step, value * SCALE.get(key, 1)) for step, value in line]
            for other, words in NORMS.items() if key == "gradient_norm" else ():
                if drawn := points(records, "train", other):
                    lines[f"{label}, {words}"] = drawn
        if any(len(line) > 1 for line in lines.values()):
            found.append(charts.curves(f"training-{key}", title, lines, {}))
    return found
