// A rank's own side: see ranks.h.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <iostream>
#include <sstream>
#include <thread>

#include "modules/cluster.h"
#include "modules/mpi/checks.h"
#include "modules/mpi_elastic/ranks.h"
#include "support.h"

namespace hvd::backend::test {
namespace {

namespace fs = std::filesystem;

// Open MPI's daemon, too, writes to where this process writes.
void say(const std::string& answer) { std::cout << "\n" << kAnswer << answer << std::endl; }

std::string hex_of(const std::vector<uint8_t>& bytes) {
  std::string text;
  for (const uint8_t byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

std::vector<uint8_t> bytes_of(const std::string& hex) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::string word_of(const Status& status) {
  if (status.ok()) return "ok";
  return std::to_string(status.code) + " " + status.message;
}

class Rank {
 public:
  Rank(bool elastic, const std::string& segment_bytes, fs::path folder) : folder_(std::move(folder)) {
    HostHandlers handlers = inbox_.handlers();
    handlers.kv_set = [this](uint64_t generation, const std::string& key, std::span<const uint8_t> value) {
      const fs::path path = path_of(generation, key);
      const fs::path draft = path.string() + "." + std::to_string(getpid());
      std::ofstream(draft, std::ios::binary)
          .write(reinterpret_cast<const char*>(value.data()), static_cast<std::streamsize>(value.size()));
      fs::rename(draft, path);
      return Status();
    };
    handlers.kv_get = [this](uint64_t generation, const std::string& key, Duration timeout,
                             std::vector<uint8_t>* value) {
      // The store is a folder, so that a rank that is killed leaves nothing locked; nothing tells of a new
      // file.
      const auto deadline = std::chrono::steady_clock::now() + timeout;
      while (!fs::exists(path_of(generation, key))) {
        if (std::chrono::steady_clock::now() > deadline) return Status(HVD_TIMEOUT, "no key " + key);
        if (aborted_ >= generation) return Status(HVD_PEER_LOST, "aborted");
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      std::ifstream file(path_of(generation, key), std::ios::binary);
      value->assign(std::istreambuf_iterator<char>(file), {});
      return Status();
    };
    inbox_.on_failure = [this](const Inbox::Loss& loss) {  // as the core does
      aborted_ = loss.generation;
      instance_->abort(loss.generation);
    };
    opened_ = open_module(
        module_name(),
        {{"interface", "127.0.0.1"}, {"elastic", elastic ? "1" : "0"}, {"segment_bytes", segment_bytes}},
        std::move(handlers), &instance_, log_.logger());
  }

  std::string answer(std::istringstream& words) {
    std::string command;
    words >> command;
    if (!opened_.ok()) return word_of(opened_);
    if (command == "address") {
      std::vector<uint8_t> blob;
      const Status status = address_of(*instance_, &blob);
      return status.ok() ? hex_of(blob) : word_of(status);
    }
    if (command == "connect") return connect(words);
    if (command == "check") return check(*instance_, place_, &sequence_);
    if (command == "loop") return loop(words);
    if (command == "barrier") {
      Pending pending;
      return word_of(run(*instance_, pending.op(HVD_COLLECTIVE_BARRIER, ++sequence_), pending));
    }
    if (command == "flash") {  // begins an op and gives it up after so many microseconds
      int64_t microseconds = 0;
      words >> microseconds;
      if (const std::string begun = begin(); begun != "ok") return begun;
      const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(microseconds);
      while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
      aborted_ = generation_;
      instance_->abort(generation_);
      return remember();
    }
    if (command == "begin") return begin();
    if (command == "untouched") return untouched();
    if (command == "disconnect") {
      instance_->disconnect();
      return "ok";
    }
    if (command == "abort") {
      aborted_ = generation_;
      instance_->abort(generation_);
      return "ok";
    }
    if (command == "signals") return signals();
    if (command == "shielded") return shielded();
    return "no such command: " + command;
  }

 private:
  fs::path path_of(uint64_t generation, const std::string& key) const {
    return folder_ / (std::to_string(generation) + "." + key);
  }

  std::string connect(std::istringstream& words) {
    int64_t timeout = 0;
    words >> generation_ >> place_.rank >> place_.size >> timeout;
    std::vector<Member> members(static_cast<size_t>(place_.size));
    for (Member& member : members) {
      std::string blob;
      words >> blob;
      member = member_at(0, "", *instance_, bytes_of(blob));
    }
    sequence_ = 0;
    const auto begin = std::chrono::steady_clock::now();
    const Status status =
        instance_->connect(generation_, place_.rank, members, std::chrono::milliseconds(timeout));
    const auto took = std::chrono::steady_clock::now() - begin;
    if (took > std::chrono::milliseconds(timeout) + std::chrono::seconds(5))
      return "connect overran its time-out";
    return word_of(status);
  }

  // One op after the other until a peer is lost.
  std::string loop(std::istringstream& words) {
    int collective = 0;
    size_t part = 0;
    words >> collective >> part;
    for (uint64_t round = 1;; ++round) {
      const auto n = static_cast<size_t>(place_.size);
      std::vector<float> values(part * n, 1.F);
      std::vector<float> results(part * n);
      const std::vector<size_t> counts(2 * n, part);
      Pending pending;
      hvd_backend_op op = pending.op(static_cast<hvd_collective>(collective), ++sequence_);
      op.dtype = HVD_DTYPE_FLOAT32;
      op.reduction = HVD_REDUCTION_SUM;
      op.count = values.size();
      op.counts = counts.data();
      op.input = values.data();
      op.output = results.data();
      const Status status = run(*instance_, op, pending);
      if (status.ok()) {
        const float expected = collective == HVD_COLLECTIVE_ALLTOALL ? 1.F : static_cast<float>(place_.size);
        if (part > 0 && (results[0] != expected || results[part - 1] != expected)) return "wrong results";
        if (round == 3) say("running");
        continue;
      }
      if (status.code != HVD_PEER_LOST) return word_of(status);
      instance_->abort(generation_);
      return "lost";
    }
  }

  // An op that nobody waits for yet.
  std::string begin() {
    left_.push_back(std::make_unique<Pending>());
    memory_.assign(1 << 20, 1.F);
    hvd_backend_op op = left_.back()->op(HVD_COLLECTIVE_ALLREDUCE, ++sequence_);
    op.dtype = HVD_DTYPE_FLOAT32;
    op.reduction = HVD_REDUCTION_SUM;
    op.count = memory_.size();
    op.input = op.output = memory_.data();
    return word_of(instance_->submit(op));
  }

  // Fills the memory of the op that was begun and given up.
  std::string remember() {
    const Status status = left_.back()->wait();
    if (!status.ok() && status.code != HVD_PEER_LOST) return "the op ended with " + word_of(status);
    for (size_t i = 0; i < memory_.size(); ++i) memory_[i] = static_cast<float>(i % 1000);
    return "ok";
  }
  std::string untouched() {
    for (size_t i = 0; i < memory_.size(); ++i) {
      if (memory_[i] != static_cast<float>(i % 1000)) return "element " + std::to_string(i) + " was written";
    }
    return "ok";
  }

  std::string signals() {
    for (const int signal :
         {SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGILL, SIGPIPE, SIGTERM, SIGCHLD, SIGINT, SIGUSR1}) {
      struct sigaction action {};
      sigaction(signal, nullptr, &action);
      if (action.sa_handler != SIG_DFL) return "signal " + std::to_string(signal) + " has a handler";
    }
    return "ok";
  }

  std::string shielded() const {
    for (const std::string& line : log_.lines.get()) {
      if (line.find("is kept from the deaths") != std::string::npos) return "ok";
    }
    return "no word of it";
  }

  const fs::path folder_;
  hvd::test::LogLines log_;
  Inbox inbox_;
  Status opened_;
  std::unique_ptr<Instance> instance_;
  std::atomic<uint64_t> aborted_{0};
  uint64_t generation_ = 0, sequence_ = 0;
  Place place_;
  std::vector<float> memory_;
  std::vector<std::unique_ptr<Pending>> left_;
};

}  // namespace

bool run_as_rank(int argc, char** argv, int* ret_status) {
  if (argc != 5 || std::string(argv[1]) != "--mpi-rank") return false;
  auto* rank = new Rank(std::string(argv[2]) == "1", argv[3], argv[4]);
  std::string line;
  *ret_status = 3;  // the parent is gone
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    if (line == "exit") std::exit(0);  // in the middle of whatever
    if (line == "close") {
      delete rank;
      *ret_status = 0;
      break;
    }
    say(rank->answer(words));
  }
  return true;
}

}  // namespace hvd::backend::test
