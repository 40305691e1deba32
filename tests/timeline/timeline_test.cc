// The timeline's file: what is in it, and what becomes of it when things go wrong.
#include "timeline/timeline.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "timeline/writer.h"

namespace hvd {
namespace {

std::string escaped(std::string_view text) {
  fmt::memory_buffer out;
  append_json(&out, text);
  return fmt::to_string(out);
}

size_t occurrences(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

/// A folder and a timeline that writes into it.
class TimelineTest : public testing::Test {
 protected:
  TimelineTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "hvd-timeline-XXXXXX").string();
    folder = mkdtemp(pattern.data());
  }
  ~TimelineTest() override { std::filesystem::remove_all(folder); }
  std::string path(const std::string& name) const { return folder + "/" + name; }
  std::string read(const std::string& name) const {
    std::ifstream file(path(name));
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  /// What a parser of JSON makes of it, after repair: the number of events. -1: it is none.
  int events(const std::string& name) const {
    const std::string program =
        "import json,sys\n"
        "text = open(sys.argv[1], encoding='utf-8').read()\n"
        "def closed(text):\n"
        "    text = text.rstrip().rstrip(',')\n"
        "    return json.loads(text if text.endswith(']') else text + ']')\n"
        "try:\n"
        "    events = closed(text)\n"
        "except ValueError:\n"  // the last write of a process that was killed may have been cut short
        "    events = closed(text.rpartition(chr(10))[0])\n"
        "assert all(e['ph'] in 'XBEiM' and e['pid'] == 7 and e['tid'] // 1024 == 7 and e['ts'] >= 0 for e in events)\n"
        "sys.stdout.write(str(len(events)))\n";
    const std::string command = fmt::format("python3 -c \"{}\" '{}'", program, path(name));
    FILE* pipe = popen(command.c_str(), "r");
    int count = -1;
    if (std::fscanf(pipe, "%d", &count) != 1) count = -1;
    pclose(pipe);
    return count;
  }
  static Time at(int64_t us) { return Time(std::chrono::microseconds(us)); }

  std::string folder;
  std::vector<std::string> warnings;
  static void warn(void* self, hvd_log_level, const char* line) {
    static_cast<TimelineTest*>(self)->warnings.emplace_back(line);
  }
  LoggerPtr logger = std::make_shared<Logger>(HVD_LOG_WARNING, Callback<hvd_log_fn>(&warn, this, nullptr));
  Timeline timeline{7, "b", logger};
};

TEST(TimelineText, NamesAreTheUsersAndAnything) {
  EXPECT_EQ(escaped("grad.1"), R"("grad.1")");
  EXPECT_EQ(escaped("a\"b\\c"), R"("a\"b\\c")");
  EXPECT_EQ(escaped(std::string_view("\0\n\x1f\x7f", 4)), R"("\u0000\u000a\u001f\u007f")");
  EXPECT_EQ(escaped("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"), "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"");
  EXPECT_EQ(escaped("\xc3"), R"("\ufffd")");                                  // cut off
  EXPECT_EQ(escaped("\x80y"), R"("\ufffdy")");                                // begins in the middle
  EXPECT_EQ(escaped("\xc0\xaf"), R"("\ufffd\ufffd")");                        // overlong
  EXPECT_EQ(escaped("\xe0\x80\xaf"), R"("\ufffd\ufffd\ufffd")");              // overlong
  EXPECT_EQ(escaped("\xed\xa0\x80"), R"("\ufffd\ufffd\ufffd")");              // a surrogate
  EXPECT_EQ(escaped("\xf4\x90\x80\x80z"), R"("\ufffd\ufffd\ufffd\ufffdz")");  // beyond Unicode
}

TEST(TimelineText, PathsTellWorkersApart) {
  EXPECT_EQ(Timeline::file_of("/t/trace", 7, "b"), "/t/trace.7.json");
  EXPECT_EQ(Timeline::file_of("/t/%w.json", 7, "b"), "/t/7.json");
  EXPECT_EQ(Timeline::file_of("/t/%h", 7, "../b"), "/t/.._b.7.json");
  EXPECT_EQ(Timeline::file_of("%p%%", 7, "b"), std::to_string(::getpid()) + "%");
  EXPECT_THROW(Timeline::file_of("/t/%r", 7, "b"), Error);
  EXPECT_THROW(Timeline::file_of("/t/%", 7, "b"), Error);
}

TEST_F(TimelineTest, HoldsWhatHappened) {
  EXPECT_FALSE(timeline.on());
  timeline.place(3, 2, 4);
  ASSERT_TRUE(timeline.start(path("t")).ok());
  EXPECT_TRUE(timeline.on());
  timeline.operation("grad\n1", "allreduce", {at(100), at(150), at(160)}, at(200),
                     {{"bytes", int64_t{4096}}, {"dtype", "float32"}, {"fused", int64_t{3}}});
  timeline.operation("beside", "barrier", {at(120), {}, {}}, at(210), {{"status", "HVD_PEER_LOST"}});
  timeline.operation("later", "barrier", {at(205), at(207), {}}, at(208));
  timeline.slice(TimelineRow::kState, "commit", at(300), at(300) + Duration(1500), {{"bytes", int64_t{8}}});
  timeline.begin(TimelineRow::kGenerations, "recovery", at(400), {{"reason", "rank 1 \"lost\""}});
  timeline.end(TimelineRow::kGenerations, at(500), {{"attempts", int64_t{1}}});
  timeline.instant("hosts updated", at(450));
  ASSERT_TRUE(timeline.stop().ok());
  EXPECT_FALSE(timeline.on());
  const std::string text = read("t.7.json");
  for (
      const char* line :
      {R"({"ph":"X","pid":7,"tid":7178,"ts":100.000,"dur":100.000,"name":"grad\u000a1","cat":"operation","args":{"kind":"allreduce","bytes":4096,"dtype":"float32","fused":3}})",
       R"({"ph":"X","pid":7,"tid":7178,"ts":100.000,"dur":50.000,"name":"NEGOTIATE","cat":"phase"})",
       R"({"ph":"X","pid":7,"tid":7178,"ts":150.000,"dur":10.000,"name":"QUEUE","cat":"phase"})",
       R"({"ph":"X","pid":7,"tid":7178,"ts":160.000,"dur":40.000,"name":"allreduce","cat":"phase"})",
       R"({"ph":"X","pid":7,"tid":7179,"ts":120.000,"dur":90.000,"name":"beside",)",
       R"({"ph":"X","pid":7,"tid":7179,"ts":120.000,"dur":90.000,"name":"NEGOTIATE","cat":"phase"})",
       R"({"ph":"X","pid":7,"tid":7178,"ts":205.000,"dur":3.000,"name":"later",)",
       R"({"ph":"X","pid":7,"tid":7178,"ts":207.000,"dur":1.000,"name":"barrier","cat":"phase"})",
       R"({"ph":"X","pid":7,"tid":7170,"ts":300.000,"dur":1.500,"name":"commit","cat":"state","args":{"bytes":8}})",
       R"({"ph":"B","pid":7,"tid":7169,"ts":400.000,"name":"recovery","cat":"generation","args":{"reason":"rank 1 \"lost\""}})",
       R"({"ph":"E","pid":7,"tid":7169,"ts":500.000,"args":{"attempts":1}})",
       R"({"ph":"i","pid":7,"tid":7169,"ts":450.000,"name":"hosts updated","cat":"generation","s":"t"})",
       R"x("name":"process_name","args":{"name":"rank 2 (host b, worker 7)"})x", R"("name":"generation 3")",
       R"("name":"hvd_clock","args":{"wall_offset_ns":)"}) {
    EXPECT_EQ(occurrences(text, line), 1u + (std::string(line).find("hvd_clock") != std::string::npos))
        << line << "\n"
        << text;
  }
  EXPECT_EQ(occurrences(text, "dropped"), 0u);
  EXPECT_EQ(events("t.7.json"), static_cast<int>(occurrences(text, "\"ph\"")));
}

TEST_F(TimelineTest, APlaceIsToldAgainWhenItChanges) {
  timeline.place(1, 2, 4);
  ASSERT_TRUE(timeline.start(path("t")).ok());
  timeline.place(2, 1, 3);
  ASSERT_TRUE(timeline.stop().ok());
  timeline.place(3, 0, 3);
  const std::string text = read("t.7.json");
  EXPECT_LT(text.find("rank 2 (host b, worker 7)"), text.find("rank 1 (host b, worker 7)")) << text;
  EXPECT_EQ(occurrences(text, "rank 0"), 0u);
}

TEST_F(TimelineTest, StartsAgain) {
  ASSERT_TRUE(timeline.start(path("t")).ok());
  const Status twice = timeline.start(path("u"));
  EXPECT_EQ(twice.code, HVD_INVALID);
  EXPECT_NE(twice.message.find(path("t.7.json")), std::string::npos) << twice.message;
  timeline.instant("first", at(1));
  ASSERT_TRUE(timeline.stop().ok());
  EXPECT_TRUE(timeline.stop().ok());
  timeline.instant("between", at(2));
  ASSERT_TRUE(timeline.start(path("t")).ok());
  timeline.instant("second", at(3));
  ASSERT_TRUE(timeline.stop().ok());
  const std::string text = read("t.7.json");
  EXPECT_EQ(occurrences(text, "first") + occurrences(text, "between"), 0u) << text;
  EXPECT_EQ(occurrences(text, "second"), 1u);
}

TEST_F(TimelineTest, PathsThatAreNoGood) {
  EXPECT_EQ(timeline.start("").code, HVD_INVALID);
  EXPECT_EQ(timeline.start(path("%r")).code, HVD_INVALID);
  const Status status = timeline.start(path("no/such/folder"));
  EXPECT_EQ(status.code, HVD_UNAVAILABLE);
  EXPECT_EQ(status.vendor_code, ENOENT);
  ASSERT_EQ(mkfifo(path("pipe.7.json").c_str(), 0600), 0);
  EXPECT_NE(timeline.start(path("pipe")).code, HVD_OK);  // and it returns
  EXPECT_EQ(timeline.start("/dev/null%p%p/..").code, HVD_UNAVAILABLE);
  std::ofstream(path("kept")) << "kept";
  std::filesystem::create_symlink(path("kept"), path("link.7.json"));
  EXPECT_EQ(timeline.start(path("link")).vendor_code, ELOOP) << "a link may point at anybody's file";
  std::filesystem::create_hard_link(path("kept"), path("hard.7.json"));
  const Status linked = timeline.start(path("hard"));
  EXPECT_EQ(linked.code, HVD_INVALID) << "so may one without a link to follow";
  EXPECT_NE(linked.message.find("hard.7.json: expected a file without a second name"), std::string::npos)
      << linked.message;
  EXPECT_EQ(read("kept"), "kept");
  Timeline other(7, "b", logger);
  ASSERT_TRUE(timeline.start(path("t")).ok());
  timeline.instant("mine", at(1));
  EXPECT_EQ(other.start(path("t")).code, HVD_UNAVAILABLE) << "one file, two timelines";
  ASSERT_TRUE(timeline.stop().ok());
  EXPECT_EQ(occurrences(read("t.7.json"), "mine"), 1u);
}

TEST_F(TimelineTest, BuffersABoundedAmountAndSaysWhatIsLost) {
  const std::string name(1000, 'x');
  constexpr int kThreads = 4;
  constexpr int kEach = 5000;  // 20 MB of records, mostly much faster than they are written
  size_t dropped = 0;
  for (int round = 0; round < 20 && dropped == 0; ++round) {
    ASSERT_TRUE(timeline.start(path("t")).ok());
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] {
        for (int n = 0; n < kEach; ++n) timeline.slice(TimelineRow::kState, name, at(n), at(n));
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_TRUE(timeline.stop().ok());
    const std::string text = read("t.7.json");
    for (size_t at = 0; (at = text.find(R"("dropped":)", at)) != std::string::npos; ++at) {
      dropped += std::stoul(text.substr(at + 10));
    }
    EXPECT_EQ(occurrences(text, name) + dropped, size_t{kThreads} * kEach);
  }
  EXPECT_GT(dropped, 0u) << "not a test of the limit";
}

TEST_F(TimelineTest, LongTextIsCut) {
  ASSERT_TRUE(timeline.start(path("t")).ok());
  timeline.instant("long", at(1), {{"text", std::string(100000, 'y')}});
  ASSERT_TRUE(timeline.stop().ok());
  EXPECT_EQ(occurrences(read("t.7.json"), std::string(1024, 'y')), 1u);
}

TEST_F(TimelineTest, MoreOperationsAtOnceThanRowsAreCounted) {
  ASSERT_TRUE(timeline.start(path("t")).ok());
  for (int i = 0; i < 1005; ++i)
    timeline.operation("op", "barrier", {at(10), at(20), at(25)}, at(30), {{"a", "text"}, {"b", int64_t{1}}});
  timeline.operation("next", "barrier", {at(30), at(32), {}}, at(35));
  ASSERT_TRUE(timeline.stop().ok());
  const std::string text = read("t.7.json");
  EXPECT_EQ(occurrences(text, R"("name":"op")"), 1000u);
  EXPECT_EQ(occurrences(text, R"("name":"next")"), 1u);
  EXPECT_EQ(occurrences(text, R"("dropped":5)"), 1u);
  EXPECT_GT(events("t.7.json"), 0);
}

/// Runs `child` in a process of its own, which it ends itself.
int in_process(const std::function<void()>& child) {
  const pid_t pid = fork();
  if (pid == 0) {
    child();
    _exit(99);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return status;
}

TEST_F(TimelineTest, IsLoadableWhenTheProcessWasKilled) {
  const int status = in_process([&] {
    Timeline killed(7, "b", nullptr);
    killed.place(1, 0, 2);
    if (!killed.start(path("t")).ok()) _exit(98);
    for (int i = 0; i < 5000; ++i) killed.slice(TimelineRow::kState, "commit", at(i), at(i + 1));
    killed.instant("the last one", at(6000));
    // It is written when the file holds it.
    while (read("t.7.json").find("the last one") == std::string::npos) {
      killed.slice(TimelineRow::kState, "more", at(7000), at(7001));
    }
    kill(getpid(), SIGKILL);
  });
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  EXPECT_EQ(occurrences(read("t.7.json"), "\n]"), 0u) << "it was closed";
  EXPECT_GT(events("t.7.json"), 5000);
}

TEST_F(TimelineTest, AFullDiskIsAWarningOnce) {
  const int status = in_process([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    if (!timeline.start(path("t")).ok()) _exit(98);
    const rlimit limit{100000, 100000};
    setrlimit(RLIMIT_FSIZE, &limit);
    for (int i = 0; i < 5000; ++i) timeline.slice(TimelineRow::kState, "commit", at(i), at(i + 1));
    const Status stopped = timeline.stop();
    const bool told = warnings.size() == 1 && warnings[0].find(path("t.7.json")) != std::string::npos;
    _exit(told && stopped.code == HVD_UNAVAILABLE && stopped.vendor_code == EFBIG ? 0 : 1);
  });
  EXPECT_EQ(status, 0);
  EXPECT_GT(events("t.7.json"), 0) << "what was whole stays whole";
}

TEST_F(TimelineTest, StartsAndStopsWhileOthersRecord) {
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!over) {
        if (timeline.on()) timeline.operation("op", "barrier", {now(), now(), now()}, now(), {{"n", "x"}});
        timeline.place(1, 0, 1);
      }
    });
  }
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(timeline.start(path("t")).ok());
    EXPECT_TRUE(timeline.stop().ok());
  }
  over = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(events("t.7.json"), 0);
}

}  // namespace
}  // namespace hvd
