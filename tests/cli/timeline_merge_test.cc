// Several workers' timelines as one.
#include "cli/timeline_merge.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "loop_support.h"
#include "timeline/timeline.h"

namespace hvd::cli {
namespace {

using test::read_file;

class Merge : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder.path(name); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(path(name)) << text; }
  /// A line as libhvd writes it.
  static std::string event(int pid, const std::string& name, int64_t ts_us, const std::string& phase = "i") {
    return fmt::format(R"({{"ph":"{}","pid":{},"tid":{},"ts":{}.250,"name":"{}"}})", phase, pid,
                       pid * 1024 + 1, ts_us, name);
  }
  static std::string clock(int pid, const std::string& host, int64_t offset_ns) {
    return fmt::format(
        R"({{"ph":"M","pid":{},"tid":{},"ts":0.000,"name":"hvd_clock","args":{{"wall_offset_ns":{},"worker":{},"host":"{}","process":{},"version":"0.1.0"}}}})",
        pid, pid * 1024, offset_ns, pid, host, 100 + pid);
  }
  static std::string place(int pid, int rank) {
    return fmt::format(
        R"({{"ph":"M","pid":{},"tid":{},"ts":0.000,"name":"process_sort_index","args":{{"sort_index":{}}}}})",
        pid, pid * 1024, rank);
  }
  static std::string file(const std::vector<std::string>& lines, const std::string& end = "\n]\n") {
    std::string text = "[\n";
    for (size_t i = 0; i < lines.size(); ++i) text += (i == 0 ? "" : ",\n") + lines[i];
    return text + end;
  }
  /// What python makes of the merged file: an expression on `events`.
  std::string ask(const std::string& expression) const {
    const std::string command = fmt::format(
        "python3 -c \"import json,sys\nevents = json.load(open(sys.argv[1], encoding='utf-8'))['traceEvents']\n"
        "def the(name): return [e for e in events if e['name'] == name]\nprint({})\" '{}'",
        expression, path("out"));
    FILE* pipe = popen(command.c_str(), "r");
    std::string answer;
    char buffer[4096];
    while (std::fgets(buffer, sizeof buffer, pipe) != nullptr) answer += buffer;
    pclose(pipe);
    while (!answer.empty() && answer.back() == '\n') answer.pop_back();
    return answer;
  }

  test::Folder folder;
};

TEST_F(Merge, BringsClocksIntoLine) {
  // Host b was started 1000 us before host a: what is at 5000 on b was at 4000 on a.
  write("a", file({clock(1, "a", 9'000'000'000), event(1, "x", 4000), place(1, 1)}));
  write("b", file({clock(2, "b", 8'999'000'000), event(2, "y", 5000), event(2, "z", 5001), place(2, 0)}));
  const Merged merged = merge_timelines(path("out"), {path("a"), path("b")});
  EXPECT_EQ(merged.lanes, 2u);
  EXPECT_TRUE(merged.notes.empty()) << merged.notes[0];
  EXPECT_EQ(ask("the('x')[0]['ts'] == the('y')[0]['ts'], the('z')[0]['ts'] - the('y')[0]['ts']"), "True 1.0");
  EXPECT_EQ(ask("min(e['ts'] for e in events)"), "0.0");
  EXPECT_EQ(ask("sorted((e['args']['sort_index'], e['pid']) for e in the('process_sort_index'))"),
            "[(0, 2), (1, 1)]")
      << "in the order of ranks";
}

TEST_F(Merge, WorkersOfDifferentJobsKeepTheirOwnLanes) {
  write("a", file({clock(1, "a", 0), event(1, "x", 10)}));
  write("b", file({clock(1, "b", 0), event(1, "y", 10)}));
  write("c", file({clock(1, "a", 0), event(1, "again", 20)}));  // the same process, another file
  EXPECT_EQ(merge_timelines(path("out"), {path("a"), path("b"), path("c")}).lanes, 2u);
  EXPECT_EQ(ask("the('x')[0]['pid'] == the('y')[0]['pid'], the('x')[0]['pid'] == the('again')[0]['pid']"),
            "False True");
  EXPECT_EQ(ask("all(e['tid'] // 1024 == e['pid'] for e in events)"), "True");
}

TEST_F(Merge, FilesMayEndAnywhere) {
  const std::string whole = file({clock(1, "a", 0), event(1, "x", 10), event(1, "brace } \\\" {", 20)}, "");
  write("other", file({clock(2, "b", 0), event(2, "y", 10)}));
  const size_t second = whole.find(event(1, "x", 10));
  for (size_t length = 0; length <= whole.size(); ++length) {
    write("cut", whole.substr(0, length));
    const Merged merged = merge_timelines(path("out"), {path("cut"), path("other")});
    EXPECT_EQ(merged.lanes, length < second - 2 ? 1u : 2u) << length;
    if (length == second + 10) { EXPECT_EQ(merged.notes.size(), 1u) << "a line that is cut off"; }
    if (length % 200 == 0) { ASSERT_EQ(ask("len(the('y'))"), "1") << length; }
  }
  EXPECT_EQ(ask("len(the('x')), len(events)"), "1 7");
}

TEST_F(Merge, MergedFilesMayBeMerged) {
  write("a", file({clock(1, "a", 9'000'000'000), event(1, "x", 4000), place(1, 1)}));
  write("b", file({clock(2, "b", 8'000'000'000), event(2, "y", 5000), place(2, 0)}));
  write("c", file({clock(3, "c", 8'500'000'000), event(3, "z", 5000), place(3, 2)}));
  merge_timelines(path("first"), {path("a"), path("b")});
  merge_timelines(path("out"), {path("first"), path("c")});
  const std::string twice = ask("sorted((e['name'], e['ts'], e['pid']) for e in events if e['ph'] == 'i')");
  merge_timelines(path("out"), {path("a"), path("b"), path("c")});
  EXPECT_EQ(twice, ask("sorted((e['name'], e['ts'], e['pid']) for e in events if e['ph'] == 'i')"));
  EXPECT_NE(twice, "[]");
}

TEST_F(Merge, WhatIsNoTimelineIsRefused) {
  write("a", file({clock(1, "a", 0), event(1, "x", 10)}));
  write("rubbish",
        "hello\n{\"ph\":\"X\"}\n{\"ph\":\"i\",\"pid\":1,\"tid\":1,\"ts\":99999999999999999999.000}\n");
  EXPECT_THROW(merge_timelines(path("out"), {path("rubbish")}), std::runtime_error);
  EXPECT_FALSE(std::filesystem::exists(path("out")));
  EXPECT_THROW(merge_timelines(path("out"), {path("a"), path("missing")}), std::runtime_error);
  EXPECT_THROW(merge_timelines(path("a"), {path("a")}), std::runtime_error) << "it would be lost";
  EXPECT_THROW(merge_timelines(path("no/folder"), {path("a")}), std::runtime_error);
  std::ofstream(path("kept")) << "kept";
  std::filesystem::create_hard_link(path("kept"), path("hard"));
  EXPECT_THROW(merge_timelines(path("hard"), {path("a")}), std::runtime_error) << "it may be anybody's file";
  EXPECT_EQ(std::filesystem::file_size(path("kept")), 4u);
  EXPECT_EQ(merge_timelines(path("out"), {path("a"), path("rubbish")}).notes.size(), 2u);
  EXPECT_EQ(ask("len(the('x'))"), "1");
}

TEST_F(Merge, ReadsWhatTheLibraryWrites) {
  std::vector<std::string> files;
  for (int worker = 1; worker <= 3; ++worker) {
    Timeline timeline(static_cast<uint64_t>(worker), "\"" + std::to_string(worker) + "\"", nullptr);
    timeline.place(1, 3 - worker, 3);
    ASSERT_TRUE(timeline.start(path("t")).ok());
    const Time at = now();
    timeline.operation("grad", "allreduce", {at, at, at}, now(), {{"bytes", int64_t{8}}});
    ASSERT_TRUE(timeline.stop().ok());
    files.push_back(path(fmt::format("t.{}.json", worker)));
  }
  const Merged merged = merge_timelines(path("out"), files);
  EXPECT_EQ(merged.lanes, 3u);
  EXPECT_TRUE(merged.notes.empty()) << merged.notes[0];
  EXPECT_EQ(
      ask("[e['pid'] for e in sorted(the('process_sort_index'), key=lambda e: e['args']['sort_index'])]"),
      "[3, 2, 1]");
  EXPECT_EQ(ask("sorted(e['args']['name'] for e in the('process_name'))[0]"),
            "rank 0 (host \"3\", worker 3)");
  EXPECT_EQ(ask("len(the('grad')), len(the('allreduce'))"), "3 3");
}

}  // namespace
}  // namespace hvd::cli
