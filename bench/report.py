"""What the benchmarks' scripts share: who was measured where, and how a result is drawn."""

import os
import platform
import statistics
import subprocess

TREE = os.path.realpath(os.path.join(os.path.dirname(__file__), ".."))


def first_line(command):
    """The first line that a program prints about itself, wherever it prints it."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL)
        return (done.stdout + done.stderr).strip().splitlines()[0]
    except (OSError, subprocess.TimeoutExpired, IndexError):
        return "unknown"


def revision():
    """Version and commit of the tree."""
    version = "unknown"
    with open(os.path.join(TREE, "CMakeLists.txt")) as lists:
        for line in lists:
            if line.startswith("set(MUSES_PROJECT_VERSION "):
                version = line.split()[1].rstrip(")")
    commit = first_line(["git", "-C", TREE, "rev-parse", "--short", "HEAD"])
    return version + (f" ({commit})" if len(commit) < 16 and commit != "unknown" else "")


def machine():
    model = "unknown processor"
    try:
        with open("/proc/cpuinfo") as info:
            model = next((line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), model)
    except OSError:
        pass
    return f"{model}, {os.cpu_count()} processors, {platform.system()} {platform.release()} {platform.machine()}"


def bars(groups, title, subtitle, colours):
    """An SVG: a bar for each row of each group, as long as the median; a dot for each round. Groups: [(heading, [(name, values)])].

    Groups that are of different size by far have each a scale of its own.
    """
    left, width, bar, gap = 170, 520, 22, 20
    tops = [max(value for _, values in rows for value in values) * 1.08 for _, rows in groups]
    shared = max(tops) < 5 * min(tops)
    out, y = [], 64
    for (heading, rows), top in zip(groups, tops):
        scale = width / (max(tops) if shared else top)
        out.append(f'<text x="16" y="{y}" class="group">{escape(heading)}</text>')
        y += 10
        for name, values in rows:
            middle = statistics.median(values)
            out.append(f'<text x="{left - 8}" y="{y + bar * 0.7:.0f}" text-anchor="end">{escape(name)}</text>')
            out.append(f'<rect x="{left}" y="{y}" width="{middle * scale:.1f}" height="{bar - 4}" fill="{colours.get(name, "#777")}"/>')
            for value in values:
                out.append(f'<circle cx="{left + value * scale:.1f}" cy="{y + (bar - 4) / 2:.1f}" r="2.5" class="dot"/>')
            out.append(f'<text x="{left + max(values) * scale + 8:.1f}" y="{y + bar * 0.7:.0f}">{middle:,.2f}</text>')
            y += bar
        y += gap
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 80}" height="{y}" viewBox="0 0 {left + width + 80} {y}" '
            f'role="img" aria-label="{escape(title)}">\n<style>text{{font:13px sans-serif;fill:#222}}.group{{font-weight:bold}}'
            '.title{font-size:16px;font-weight:bold}.small{font-size:11px;fill:#666}.dot{fill:#fff;stroke:#222;stroke-width:1}</style>\n'
            f'<rect width="100%" height="100%" fill="#fff"/>\n'
            f'<text x="16" y="24" class="title">{escape(title)} (bar: median, dots: rounds)</text>\n'
            f'<text x="16" y="42" class="small">{escape(subtitle)}</text>\n')
    return head + "\n".join(out) + "\n</svg>\n"


def escape(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
