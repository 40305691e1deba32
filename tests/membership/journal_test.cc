// Journals that are whole, cut or damaged: their records are recognised one by one.
#include "membership/journal.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/digest.h"
#include "membership/simulator.h"

namespace hvd::membership::test {
namespace {

KnownJob some_job() {
  KnownJob job;
  job.told = true;
  job.generation = 7;
  job.epoch = 11;
  job.next_worker = 300;
  job.resets = 6;
  job.initial = false;
  job.state_exists = true;
  job.members = {1, 299, 4};
  job.workers = {{1, "a", 0, true, false, false, std::nullopt, ""},
                 {299, "b", 1, true, true, true, seconds(3), "host b is drained"}};
  job.done = {4};
  job.hosts.push_back({"a", 2, 1, 0, 6, true, seconds(2), {{0, 3, seconds(4), false}}, false, {}});
  job.hosts.push_back({"b", 2, 0, 0, 0, false, std::nullopt, {}, true, {1}});
  job.scaled = 5;
  job.newest = uint64_t{1} << 41;
  job.last_loss = "rank 1 lost";
  return job;
}

std::vector<Record> some_records() {
  KnownWorker started;
  started.worker = 301;
  started.host = "c";
  return {TermBegan{2, "job", "127.0.0.1:4000"},
          some_job(),
          WorkerStarted{started},
          WorkerSynced{301},
          WorkerGone{1, true, "rank 0 lost", {}},
          WorkerDone{299},
          Announced{13, true, some_job().hosts},
          JobFinished{{true, "all done", true}}};
}

std::string bytes_of(const std::vector<Record>& records) {
  std::string bytes;
  for (const Record& r : records) bytes += encode(r);
  return bytes;
}

TEST(Journal, SaysAgainWhatItWasTold) {
  size_t damaged = 0;
  EXPECT_EQ(decode(bytes_of(some_records()), &damaged), some_records());
  EXPECT_EQ(damaged, 0u);
  const Journal journal = read_journal(bytes_of(some_records()));
  EXPECT_TRUE(journal.job.told);
  EXPECT_EQ(journal.began.term, 2u);
  EXPECT_EQ(journal.job.next_worker, 302u);
  EXPECT_EQ(journal.job.done, (std::vector<uint64_t>{4, 299}));
  EXPECT_TRUE(journal.job.aborted);
  EXPECT_TRUE(journal.job.interrupted);
  EXPECT_EQ(journal.job.epoch, 13u);
  ASSERT_TRUE(journal.job.finish);
  EXPECT_EQ(journal.job.finish->sentence, "all done");
}

TEST(Journal, ThatIsCutHasAllRecordsBeforeTheCut) {
  const std::vector<Record> records = some_records();
  const std::string bytes = bytes_of(records);
  for (size_t length = 0; length < bytes.size(); ++length) {
    size_t damaged = 0;
    const std::vector<Record> found = decode(std::string_view(bytes).substr(0, length), &damaged);
    ASSERT_LT(found.size(), records.size());
    EXPECT_TRUE(std::equal(found.begin(), found.end(), records.begin())) << length;
    EXPECT_EQ(damaged, bytes_of(found).size() == length ? 0u : 1u) << length;
  }
}

TEST(Journal, ThatIsDamagedAnywhereLosesThatRecordAlone) {
  const std::vector<Record> records = some_records();
  const std::string bytes = bytes_of(records);
  size_t begin = 0;
  for (size_t hit = 0; hit < records.size(); begin += encode(records[hit]).size(), ++hit) {
    for (size_t at = begin; at < begin + encode(records[hit]).size(); ++at) {
      std::string broken = bytes;
      broken[at] = static_cast<char>(broken[at] ^ (1 << (at % 8)));
      size_t damaged = 0;
      std::vector<Record> wanted = records;
      wanted.erase(wanted.begin() + static_cast<std::ptrdiff_t>(hit));
      EXPECT_EQ(decode(broken, &damaged), wanted) << "byte " << at;
      EXPECT_EQ(damaged, 1u);
      EXPECT_FALSE(read_journal(broken).job.told);
    }
  }
}

/// Bytes that say of themselves that they are a record of a kind that nobody knows.
std::string of_no_kind(const std::string& content) {
  std::string bytes = "\xd1Hvd";
  const size_t length = 1 + content.size() + 8;
  for (size_t i = 0; i < 4; ++i) bytes.push_back(static_cast<char>(length >> (8 * i)));
  bytes += '\xc8' + content;
  const uint64_t low = digest(bytes.data(), bytes.size()).low;
  for (size_t i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(low >> (8 * i)));
  return bytes;
}

TEST(Journal, PassesOverARecordOfALaterVersion) {
  const std::string later = of_no_kind(encode(WorkerDone{7}));
  size_t damaged = 0;
  EXPECT_EQ(decode(encode(WorkerDone{1}) + later + encode(WorkerDone{2}), &damaged),
            (std::vector<Record>{WorkerDone{1}, WorkerDone{2}}));
  EXPECT_EQ(damaged, 1u);
}

// Each of the heads says that its record reaches to the end: to believe them all is quadratic.
TEST(Journal, OfHeadsWithoutRecordsTakesLinearWork) {
  std::string bytes;
  const size_t size = size_t{1} << 20;
  while (bytes.size() < size) {
    bytes += "\xd1Hvd";
    const size_t length = size - bytes.size();
    for (size_t i = 0; i < 4; ++i) bytes.push_back(static_cast<char>(length >> (8 * i)));
  }
  bytes += bytes_of(some_records());
  size_t damaged = 0, in_vain = 0;
  EXPECT_EQ(decode(bytes, &damaged, &in_vain), some_records()) << "what follows is lost";
  EXPECT_EQ(damaged, 1u);
  EXPECT_GT(in_vain, size) << "they are no heads";
  EXPECT_LE(in_vain, kPatience + kPatienceForEach * bytes.size());
}

TEST(Journal, ForgetsAWorkerWhoeverTellsOfIt) {
  KnownWorker five, six;
  five.worker = 5;
  six.worker = 6;
  KnownJob job = some_job();
  job.workers.push_back(job.workers.front());  // a crafted one has a worker twice
  const auto left = [&](std::vector<Record> records) {
    records.insert(records.begin(), {TermBegan{2, "job", ""}, job});
    std::vector<uint64_t> ids;
    for (const KnownWorker& w : read_journal(bytes_of(records)).job.workers) ids.push_back(w.worker);
    return ids;
  };
  using Ids = std::vector<uint64_t>;
  EXPECT_EQ(left({}), (Ids{1, 299}));
  EXPECT_EQ(left({WorkerStarted{five}, WorkerStarted{six}}), (Ids{1, 299, 5, 6}));
  EXPECT_EQ(left({WorkerStarted{five}, WorkerStarted{six}, WorkerStarted{five}}), (Ids{1, 299, 6, 5}));
  EXPECT_EQ(left({WorkerStarted{five}, WorkerGone{5, false, "", {}}, WorkerDone{1}}), (Ids{299}));
  EXPECT_EQ(left({WorkerStarted{five}, job}), (Ids{1, 299}));
}

TEST(Journal, OfRandomBytesIsNone) {
  Random random(1);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = i % 2 == 0 ? "" : bytes_of(some_records());
    const size_t n = static_cast<size_t>(random.below(400));
    for (size_t k = 0; k < n; ++k)
      bytes.insert(bytes.begin() + random.below(bytes.size() + 1), static_cast<char>(random.next()));
    static_cast<void>(read_journal(bytes));  // it says something, and reads nothing that is not there
  }
}

}  // namespace
}  // namespace hvd::membership::test
