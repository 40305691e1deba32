"""What collective_bench is to reach, and whether it did."""

KIB, MIB = 1 << 10, 1 << 20


def size_name(count):
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if count >= unit:
            return "%d %s" % (count // unit, name)
    return "%d B" % count


def duration(us):
    return "%.3g ms" % (us / 1e3) if us >= 1000 else "%.3g us" % us


def _cell(report, place, operation, ranks, size):
    return report.get(place, {}).get(operation, {}).get("%d ranks" % ranks, {}).get(size)


def _faster_than(report, place, operation, ranks, size, other):
    """How many times hvd's speed is the other's: {median, low, high}; None if it was not measured."""
    return ((_cell(report, place, operation, ranks, size) or {}).get(other) or {}).get("over_hvd")


def _detail(report, name, key):
    return report.get("details", {}).get(name, {}).get(key)


def _inverse(ratio, factor=1.0):
    """factor / ratio, with its range."""
    return ratio and {
        "median": factor / ratio["median"],
        "low": factor / ratio["high"],
        "high": factor / ratio["low"]
    }


def judge(report):
    """One entry an aim: what is wanted, what was measured (median and range over rounds), and whether it was
    met. `column`: where the README shows it in the row of `row`."""
    host, hosts = "one_host", "two_hosts"
    aims = []

    def by_ranks(row, relation, wanted, measured):
        """One aim for each number of ranks on one host: `measured` of the number."""
        what, how = row.split(": ", 1)
        for ranks in (2, 4, 8):
            column = "%d ranks" % ranks
            aims.append(
                entry("%s, %s: %s" % (what, column, how), relation, wanted, measured(ranks), row, column))

    def copies(contender):
        """A broadcast's time over that of a copy for each receiver."""
        return lambda ranks: _inverse(_faster_than(report, host, "broadcast", ranks, "64 MiB", contender), 1 /
                                      (ranks - 1))

    def faster(operation, size, other):
        return lambda ranks: _faster_than(report, host, operation, ranks, size, other)

    by_ranks("broadcast 64 MiB: time over a copy for each receiver, by one thread", "<=", 1.3,
             copies("memcpy"))
    by_ranks("broadcast 64 MiB: the same, memcpy on all cores", "<=", 1.3, copies("memcpy_all_cores"))
    for operation, size, other, times in (("broadcast", "64 MiB", "openmpi",
                                           1.5), ("broadcast", "64 MiB", "gloo",
                                                  3), ("allreduce", "64 MiB", "openmpi",
                                                       2), ("allreduce", "64 MiB", "gloo", 3),
                                          ("allreduce", "1 MiB", "openmpi", 1.5), ("allreduce", "8 B", "gloo",
                                                                                   20)):
        by_ranks("%s %s: times as fast as %s" % (operation, size, other), ">=", times,
                 faster(operation, size, other))
    by_ranks("allreduce 8 B: time by name over openmpi's", "<=", 2.0,
             lambda ranks: _inverse(_faster_than(report, host, "allreduce", ranks, "8 B", "openmpi")))
    aims.append(
        entry("broadcast of 200 variables with 64 MiB: time over one tensor's", "<=", 1.05,
              _detail(report, "200 variables of 64 MiB together", "variables_over_one")))
    for operation in ("broadcast", "allreduce"):
        aims.append(
            entry("two hosts, %s 64 MiB, 2 ranks each: times as fast as gloo" % operation, ">=", 1.5,
                  _faster_than(report, hosts, operation, 4, "64 MiB", "gloo")))
    aims.append(
        entry("check_host_updates, nothing new: time over an allreduce of 8 B", "<=", 1.0,
              _detail(report, "check_host_updates, 8 B steps", "check_over_allreduce")))
    aims.append(
        entry("a step of one allreduce of 8 B and a check: time over the step's", "<=", 1.0,
              _detail(report, "check_host_updates, 8 B steps", "step_with_check_over_step")))
    for backend, base, ours, how in (("mpi", "openmpi", "hvd_mpi", "mpi under mpirun"),
                                     ("mpi", "openmpi", "hvd_mpi_alone", "mpi under mpirun, all data by MPI"),
                                     ("nccl", "nccl", "hvd_nccl", "nccl")):
        for operation in ("broadcast", "allreduce"):
            for size in ("1 MiB", "64 MiB", "256 MiB"):
                cell = (_cell(report, "raw_" + backend, operation, 4, size) or {}).get(ours) or {}
                row = "4 ranks, libhvd on %s: time over %s's" % (how, base)
                aims.append(
                    entry("%s %s, %s" % (operation, size, row), "<=", 1.05, cell.get("over_" + base),
                          "%s, %s" % (operation, row), size))
    return aims


def naming(report):
    """Lines: what libhvd adds to 8 B, where names and agreement are nearly all there is."""
    lines = []
    for place, base in (("raw_mpi", "openmpi"), ("raw_gloo", "gloo"), ("raw_nccl", "nccl")):
        for operation in ("broadcast", "allreduce"):
            cell = _cell(report, place, operation, 4, "8 B") or {}
            lines += [
                "%s 8 B, 4 ranks: %s %s, %s %s: naming and agreement add %s" %
                (operation, base, duration(cell[base]["median_us"]), name, duration(
                    value["median_us"]), duration(value["median_us"] - cell[base]["median_us"]))
                for name, value in cell.items() if name != base and base in cell
            ]
    return lines


# What a ratio of two things that are the same may show on a noisy machine.
SLACK = 0.05


def entry(text, relation, wanted, measured, row=None, column=None):
    result = {"aim": text, "wanted": "%s %g" % (relation, wanted)}
    if row is not None:
        result.update(row=row, column=column)
    if measured is None:
        return {**result, "met": None}
    value = measured["median"]
    met = value >= wanted if relation == ">=" else value <= wanted + (SLACK if wanted == 1.0 else 0)
    return {**result, **{key: float("%.4g" % measured[key]) for key in ("median", "low", "high")}, "met": met}


def table(entries):
    width = max(len(e["aim"]) for e in entries)
    lines = ["%s  %-8s %-24s %s" % ("aim".ljust(width), "wanted", "measured (range)", "met")]
    for e in entries:
        if e["met"] is None:
            lines.append("%s  %-8s %-24s -" % (e["aim"].ljust(width), e["wanted"], "not measured"))
        else:
            lines.append("%s  %-8s %-24s %s" %
                         (e["aim"].ljust(width), e["wanted"], "%.3g (%.3g .. %.3g)" %
                          (e["median"], e["low"], e["high"]), "yes" if e["met"] else "NO"))
    return "\n".join(lines)


NAMES = {"openmpi": "Open MPI", "gloo": "Gloo", "nccl": "NCCL"}


def _named(text):
    return " ".join(
        NAMES.get(word,
                  word.replace("openmpi's", "Open MPI's").replace("nccl's", "NCCL's"))
        for word in text.split(" "))


def _limit(e):
    relation, wanted = e["wanted"].split(" ")
    return "%s %s" % ("at least" if relation == ">=" else "at most", wanted)


def _markdown(rows):
    lines = ["| %s |" % " | ".join(row) for row in rows]
    return lines[:1] + ["|" + "---|" * len(rows[0])] + lines[1:]


def _grid(entries):
    """A row for all that differ in their column alone. What was not met is bold."""
    columns = list(dict.fromkeys(e["column"] for e in entries))
    rows = {}
    for e in entries:
        text = "%.3g (%.3g to %.3g)" % (e["median"], e["low"], e["high"])
        rows.setdefault(e["row"], {"limit": _limit(e)})[e["column"]] = text if e["met"] else "**%s**" % text
    return _markdown([["what", "aim", *columns]] +
                     [[_named(row), cells["limit"]] + [cells.get(column, "") for column in columns]
                      for row, cells in rows.items()])


def readme(entries):
    """The same as the README has it: Markdown, what was measured alone."""
    measured = [e for e in entries if e["met"] is not None]
    by_ranks = [e for e in measured if e.get("column", "").endswith("ranks")]
    by_size = [e for e in measured if "column" in e and e not in by_ranks]
    alone = [e for e in measured if "column" not in e]
    tables = [_grid(by_ranks)] if by_ranks else []
    if alone:
        tables.append(
            _markdown([["what", "aim", "measured", "met"]] + [[
                _named(e["aim"]),
                _limit(e),
                "%.3g (%.3g to %.3g)" % (e["median"], e["low"], e["high"]), "yes" if e["met"] else "no"
            ] for e in alone]))
    if by_size:
        tables.append(_grid(by_size))
    return "\n\n".join("\n".join(table) for table in tables)
