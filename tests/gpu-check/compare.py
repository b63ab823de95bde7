"""What spanprobe reported against what CUPTI saw: pure functions from values to values."""

from statistics import median

GPU_ACTIVITIES = {"kernel", "gpu_memcpy", "gpu_memset"}
HOST_CALLS = {"cuda_runtime", "cuda_driver"}
# Clocks of host and device are matched by CUPTI to about a microsecond.
TOLERANCE_NS = 2_000


def union_ns(intervals):
    """Length that the intervals `(start, end)` cover together."""
    covered, reached = 0, None
    for start, end in sorted(intervals):
        if reached is None or start > reached:
            covered += end - start
            reached = end
        elif end > reached:
            covered += end - reached
            reached = end
    return covered


def ns(micros):
    return round(float(micros) * 1_000)


def requests_of(trace):
    """The requests of a Chrome trace of PyTorch's profiler, in order, with their GPU work.

    An activity of the device belongs to the request in which the host asked for it: both have one
    correlation number. One without a call is taken by its own time.
    """
    events = [event for event in trace.get("traceEvents", []) if event.get("ph") == "X"]
    requests = []
    for event in events:
        words = event.get("name", "").split()
        if event.get("cat") == "user_annotation" and len(words) == 3 and words[0] == "request":
            begin = ns(event["ts"])
            requests.append({
                "mode": words[1], "number": int(words[2]),
                "from": begin, "to": begin + ns(event["dur"]), "work": [],
                "launches": 0, "graph_launches": 0, "h2d_bytes": 0, "d2h_bytes": 0,
            })
    requests.sort(key=lambda request: request["from"])

    def of(time):
        return next((r for r in requests if r["from"] <= time <= r["to"]), None)

    calls = {}
    for event in events:
        number = event.get("args", {}).get("correlation")
        if event.get("cat") in HOST_CALLS:
            if number is not None:
                calls.setdefault(number, event)
            if "GraphLaunch" in event["name"] and (request := of(ns(event["ts"]))):
                request["graph_launches"] += 1
    for event in events:
        if event.get("cat") not in GPU_ACTIVITIES:
            continue
        args = event.get("args", {})
        call = calls.get(args.get("correlation"))
        request = of(ns((call or event)["ts"]))
        if request is None:
            continue
        begin = ns(event["ts"])
        request["work"].append((begin, begin + ns(event["dur"])))
        in_graph = call is not None and "GraphLaunch" in call["name"]
        if event["cat"] == "kernel" and not in_graph:
            request["launches"] += 1
        if event["cat"] == "gpu_memcpy" and not in_graph:
            for kind, key in (("HtoD", "h2d_bytes"), ("DtoH", "d2h_bytes")):
                if kind in event["name"]:
                    request[key] += int(args.get("bytes", 0))
    for request in requests:
        request["busy_ns"] = union_ns(request.pop("work"))
    return requests


def timelines_of(lines, modes=("eager", "graph")):
    """spanprobe's timelines of inference, in order."""
    wanted = {f"/{mode}": mode for mode in modes}
    found = [dict(line, mode=wanted[line["route"]]) for line in lines
             if line.get("route") in wanted and not line.get("open")]
    return sorted(found, key=lambda timeline: timeline["start_monotonic_ns"])


COUNTS = ("launches", "graph_launches", "h2d_bytes", "d2h_bytes")


def counts_of(timeline):
    gpu = timeline.get("gpu") or {}
    return {name: gpu.get(name, 0) for name in COUNTS}


def compare_counts(timelines, requests):
    """Counts per request, mode by mode: those of one run of a program against another's, or the same.

    A request of a mode does the same each time, so medians are compared, and totals where there are
    as many requests on both sides.
    """
    result = {}
    for mode in sorted({request["mode"] for request in requests}):
        ours = [counts_of(t) for t in timelines if t["mode"] == mode]
        theirs = [r for r in requests if r["mode"] == mode]
        row = {"requests": [len(ours), len(theirs)]}
        for name in COUNTS:
            mine = median([counts[name] for counts in ours]) if ours else None
            row[name] = [mine, median([request[name] for request in theirs])]
        row["equal"] = bool(ours) and all(row[name][0] == row[name][1] for name in COUNTS)
        result[mode] = row
    return result


def compare_bounds(timelines, requests):
    """Bounds of each request's GPU time against CUPTI's, for one run that both saw."""
    result = {}
    for mode in sorted({request["mode"] for request in requests}):
        ours = [t for t in timelines if t["mode"] == mode]
        theirs = [r for r in requests if r["mode"] == mode]
        row = {"requests": [len(ours), len(theirs)], "inside": 0, "too_high": 0, "too_low": 0}
        widths = []
        if len(ours) == len(theirs):
            for timeline, request in zip(ours, theirs):
                gpu = timeline.get("gpu") or {"busy_lower_ns": 0, "busy_upper_ns": 0}
                low, high, true = gpu["busy_lower_ns"], gpu["busy_upper_ns"], request["busy_ns"]
                if low > true + TOLERANCE_NS:
                    row["too_high"] += 1
                elif high < true - TOLERANCE_NS:
                    row["too_low"] += 1
                else:
                    row["inside"] += 1
                if true > 0:
                    widths.append((high - low) / true)
        row["width_ratio"] = median(widths) if widths else None
        result[mode] = row
    return result


def paired_ratio(pairs):
    """Median of `with / without` over alternations, with the smallest and the largest."""
    ratios = sorted(after / before for before, after in pairs if before > 0)
    if not ratios:
        return {"median": None, "low": None, "high": None}
    return {"median": median(ratios), "low": ratios[0], "high": ratios[-1]}


def failures(report):
    """What was demanded and missed, in words. Throughput and ns are measured, not demanded."""
    missed = []
    for run in ("separate", "combined"):
        for mode, row in report.get(run, {}).get("counts", {}).items():
            if not row["equal"]:
                missed.append(f"{run} run, {mode}: counts differ from CUPTI's: {row}")
    for mode, row in report.get("combined", {}).get("bounds", {}).items():
        ours, theirs = row["requests"]
        if ours != theirs:
            missed.append(f"combined run, {mode}: {ours} timelines of {theirs} requests")
        elif row["inside"] < theirs:
            outside = theirs - row["inside"]
            missed.append(f"combined run, {mode}: {outside} of {theirs} outside of the bounds")
    if report.get("lost", 0) > 0:
        missed.append(f"{report['lost']} timelines are incomplete")
    return missed
