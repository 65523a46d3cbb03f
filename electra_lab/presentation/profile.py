"""The profile of a run: the time of a step by its parts, next to their FLOPs."""

from electra_lab.presentation.pages import SOFT, Chart, drawing, finish, look, svg
from electra_lab.presentation.text import Table
from electra_lab.storage.records import Profile


def table(profile: Profile) -> Table:
    """Return a row per part: its time, its share of the time and of the FLOPs, and its speed."""
    seconds, flops = sum(profile.seconds.values()), sum(profile.flops.values())
    rows = []
    for part, time in sorted(profile.seconds.items(), key=lambda pair: -pair[1]):
        cost = profile.flops.get(part, 0)
        by_flops = [f"{cost / flops:.1%}", f"{cost / time / 1e9:,.1f}"] if cost and time else ["-", "-"]
        rows.append([part, f"{1e3 * time:,.3f}", f"{time / seconds:.1%}", *by_flops])
    rows.append(["step", f"{1e3 * seconds:,.3f}", "100.0%", "100.0%", f"{flops / seconds / 1e9:,.1f}"])
    columns = ["part", "ms per step", "share of the time", "share of the FLOPs", "GFLOP/s"]
    return Table(f"Time of a step, the mean of {profile.steps}", columns, rows)


def shown(profile: Profile) -> str:
    """Return the table for a terminal."""
    return f"{table(profile).title}\n{table(profile).text()}"


def chart(profile: Profile) -> Chart:
    """Draw the share of each part in the time, and in the FLOPs."""
    parts = sorted(profile.seconds, key=lambda part: profile.seconds[part])
    seconds, flops = sum(profile.seconds.values()), sum(profile.flops.values()) or 1
    caption = "Parts of a step"
    with drawing() as figure:
        axes = figure.subplots()
        for row, part in enumerate(parts):
            axes.barh(row + 0.18, 100 * profile.seconds[part] / seconds, 0.36, color=look(0)["color"])
            axes.barh(row - 0.18, 100 * profile.flops.get(part, 0) / flops, 0.36, color=SOFT)
        axes.set_yticks(range(len(parts)), parts)
        finish(axes, "%")
        where = "kernels of the GPU; host: the GPU waits" if profile.on_device else "this process"
        note = f"Upper bars: share of the time, of {where}. Lower bars: share of the FLOPs."
        return Chart(caption, svg(figure, "profile", caption), note)
