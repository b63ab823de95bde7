"""Canned traces and timelines: `python3 -m unittest discover tests/gpu-check`."""

import unittest

import compare


def event(cat, name, ts, dur, **args):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args}


TRACE = {"traceEvents": [
    {"ph": "M", "name": "process_name"},
    event("user_annotation", "request eager 1", 100.0, 50.0),
    event("gpu_user_annotation", "request eager 1", 110.0, 30.0),
    event("cuda_runtime", "cudaMemcpyAsync", 101.0, 2.0, correlation=1),
    event("cuda_runtime", "cudaLaunchKernel", 104.0, 2.0, correlation=2),
    event("cuda_runtime", "cudaLaunchKernel", 107.0, 2.0, correlation=3),
    event("cuda_runtime", "cudaMemcpyAsync", 110.0, 20.0, correlation=4),
    event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 105.0, 5.0, correlation=1, bytes=4096),
    event("kernel", "gemm", 112.0, 10.0, correlation=2),
    event("kernel", "gelu", 120.0, 4.0, correlation=3),
    event("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 125.0, 5.0, correlation=4, bytes=64),
    event("user_annotation", "request graph 2", 200.0, 40.0),
    event("cuda_runtime", "cudaGraphLaunch", 205.0, 3.0, correlation=9),
    event("kernel", "gemm", 210.0, 10.0, correlation=9),
    event("kernel", "gelu", 221.0, 4.0, correlation=9),
    event("kernel", "somebody else's", 500.0, 4.0, correlation=99),
]}


def timeline(route, start, **gpu):
    return {"route": route, "start_monotonic_ns": start, "complete": True, "gpu": gpu}


EAGER = {"launches": 2, "graph_launches": 0, "h2d_bytes": 4096, "d2h_bytes": 64}
GRAPH = {"launches": 0, "graph_launches": 1, "h2d_bytes": 0, "d2h_bytes": 0}


class Comparing(unittest.TestCase):
    def test_a_union_counts_nothing_twice(self):
        self.assertEqual(compare.union_ns([]), 0)
        self.assertEqual(compare.union_ns([(5, 9), (0, 4), (3, 6), (4, 5), (20, 21)]), 10)

    def test_a_trace_gives_requests_with_their_own_work(self):
        eager, graph = compare.requests_of(TRACE)
        self.assertEqual((eager["mode"], graph["mode"]), ("eager", "graph"))
        self.assertEqual({name: eager[name] for name in compare.COUNTS}, EAGER)
        self.assertEqual({name: graph[name] for name in compare.COUNTS}, GRAPH)
        # 105 to 110, 112 to 124, 125 to 130.
        self.assertEqual(eager["busy_ns"], 22_000)
        self.assertEqual(graph["busy_ns"], 14_000)
        self.assertEqual(compare.requests_of({}), [])

    def test_timelines_are_told_by_their_route(self):
        lines = [timeline("/graph", 9), timeline("/launches", 1), timeline("/eager", 3),
                 dict(timeline("/eager", 20), open=True)]
        self.assertEqual([t["mode"] for t in compare.timelines_of(lines)], ["eager", "graph"])

    def test_equal_counts_and_others(self):
        requests = compare.requests_of(TRACE)
        lines = [timeline("/eager", 1, **EAGER), timeline("/graph", 2, **GRAPH)]
        counts = compare.compare_counts(compare.timelines_of(lines), requests)
        self.assertTrue(counts["eager"]["equal"] and counts["graph"]["equal"])
        lines[0]["gpu"]["launches"] = 3
        counts = compare.compare_counts(compare.timelines_of(lines), requests)
        self.assertFalse(counts["eager"]["equal"])
        self.assertEqual(counts["eager"]["launches"], [3, 2])
        self.assertFalse(compare.compare_counts([], requests)["eager"]["equal"])

    def test_bounds_hold_or_not(self):
        requests = compare.requests_of(TRACE)[:1]

        def row(low, high):
            lines = [timeline("/eager", 1, busy_lower_ns=low, busy_upper_ns=high)]
            return compare.compare_bounds(compare.timelines_of(lines), requests)["eager"]

        self.assertEqual(row(0, 44_000)["inside"], 1)
        self.assertEqual(row(0, 44_000)["width_ratio"], 2.0)
        self.assertEqual(row(22_500, 44_000)["inside"], 1, "within the clocks' tolerance")
        self.assertEqual(row(30_000, 44_000)["too_high"], 1)
        self.assertEqual(row(0, 10_000)["too_low"], 1)
        self.assertEqual(compare.compare_bounds([], requests)["eager"]["inside"], 0)

    def test_a_ratio_has_a_range(self):
        ratio = compare.paired_ratio([(100, 98), (100, 99), (200, 190), (0, 5)])
        self.assertEqual(ratio, {"median": 0.98, "low": 0.95, "high": 0.99})
        self.assertIsNone(compare.paired_ratio([])["median"])

    def test_failures_are_named(self):
        requests = compare.requests_of(TRACE)
        lines = [timeline("/eager", 1, busy_lower_ns=0, busy_upper_ns=44_000, **EAGER),
                 timeline("/graph", 2, busy_lower_ns=0, busy_upper_ns=44_000, **GRAPH)]
        ours = compare.timelines_of(lines)
        run = {"counts": compare.compare_counts(ours, requests),
               "bounds": compare.compare_bounds(ours, requests)}
        good = {"separate": run, "combined": run, "lost": 0}
        self.assertEqual(compare.failures(good), [])
        self.assertEqual(len(compare.failures(dict(good, lost=2))), 1)
        lines[0]["gpu"].update(launches=7, busy_upper_ns=1)
        ours = compare.timelines_of(lines)
        bad = {"counts": compare.compare_counts(ours, requests),
               "bounds": compare.compare_bounds(ours, requests)}
        self.assertEqual(len(compare.failures({"separate": run, "combined": bad})), 2)


if __name__ == "__main__":
    unittest.main()
