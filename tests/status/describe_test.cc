// Snapshots as text, JSON and metrics.
#include "status/describe.h"

#include <gtest/gtest.h>

#include "status/json_writer.h"

namespace hvd::status {
namespace {

Snapshot example() {
  Snapshot s;
  s.job = "na\"me\n\xff";
  s.phase = HVD_PHASE_RUNNING;
  s.generation = 2;
  s.size = 1;
  s.workers = 1;
  s.at = Time{} + seconds(100);
  s.unix_ms = 1700000000500;
  s.wall = seconds(40);
  s.useful = 30;
  s.commits = 7;
  s.commit_seconds = 0.25;
  s.resets_by_cause[static_cast<size_t>(Cause::kPeerLost)] = 1;
  WorkerView worker;
  worker.id = 5;
  worker.host = "a";
  worker.rank = 0;
  worker.state = WorkerState::kTraining;
  s.all.push_back(worker);
  GenerationView g;
  g.number = 2;
  g.cause = Cause::kPeerLost;
  g.reason = "rank 1 on a lost";
  g.size = 1;
  g.formed = Time{} + seconds(90);
  g.recovery.emplace().phases[static_cast<size_t>(Phase::kTotal)] = seconds(0.5);
  s.generations.push_back(g);
  s.last_recovery = seconds(0.5);
  return s;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Describe, JsonEscapesWhatItMust) {
  const std::string json = to_json(example());
  EXPECT_TRUE(has(json, R"("job":"na\"me\u000a\ufffd")")) << json;
  EXPECT_TRUE(has(json, R"("goodput":0.75)")) << json;
  EXPECT_TRUE(has(json, R"("state":"training")")) << json;
  EXPECT_TRUE(has(json, R"("formed":1699999990.5)")) << json;
}

TEST(Describe, JsonHasNullForWhatIsNotKnown) {
  Snapshot s = example();
  s.useful = -1;
  EXPECT_TRUE(has(to_json(s), R"("goodput":null)"));
}

TEST(Describe, JsonWriterPutsCommas) {
  JsonWriter json;
  json.begin_object()
      .begin_array("a")
      .begin_object()
      .end_object()
      .begin_object()
      .field("b", true)
      .end_object();
  json.end_array().field("c", int64_t{-1}).end_object();
  EXPECT_EQ(json.text(), R"({"a":[{},{"b":true}],"c":-1})");
}

TEST(Describe, LineIsOneLine) {
  Snapshot s = example();
  s.sentence = "two\nlines";
  const std::string line = to_line(s);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_TRUE(has(line, "generation 2 | 1 of 1 workers")) << line;
  EXPECT_TRUE(has(line, "goodput 75.0 %")) << line;
  EXPECT_TRUE(has(line, "last recovery 0.5")) << line;
}

TEST(Describe, TextShowsWorkersAndGenerations) {
  const std::string text = to_text(example());
  EXPECT_TRUE(has(text, "training")) << text;
  EXPECT_TRUE(has(text, "rank 1 on a lost")) << text;
}

TEST(Describe, MetricsAreComplete) {
  const std::string text = to_openmetrics(example());
  for (const char* line :
       {"hvd_build_info{version=\"" HVD_VERSION_STRING "\"} 1\n",
        "hvd_job_phase{hvd_job_phase=\"running\"} 1\n", "hvd_workers{state=\"training\"} 1\n",
        "hvd_resets_total{cause=\"peer_lost\"} 1\n", "hvd_goodput_ratio 0.75\n",
        "hvd_commit_seconds_count 7\n", "hvd_commit_seconds_sum 0.25\n", "hvd_generation 2\n"}) {
    EXPECT_TRUE(has(text, line)) << line << text;
  }
  EXPECT_TRUE(text.ends_with("# EOF\n"));
  EXPECT_FALSE(has(text, "worker=")) << "no label per worker";
}

TEST(Describe, MetricsSayNothingOfAGoodputThatIsNotKnown) {
  Snapshot s = example();
  s.useful = -1;
  EXPECT_FALSE(has(to_openmetrics(s), "\nhvd_goodput_ratio "));
}

TEST(Describe, FormatsHaveNames) {
  EXPECT_EQ(format_named("json"), Format::kJson);
  EXPECT_EQ(format_named("line"), Format::kLine);
  EXPECT_EQ(format_named("xml"), std::nullopt);
}

}  // namespace
}  // namespace hvd::status
