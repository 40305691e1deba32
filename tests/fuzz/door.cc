// Fuzzes a running driver through its door, as those do who know a key and lie: operators, workers that come
// by address, agents and workers. Whatever they say, each is answered at most once for what it asked, and the
// driver goes on.
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <map>

#include "base/text.h"
#include "driver/driver.h"
#include "driver/operator.h"
#include "fuzz.h"
#include "wire/channel.h"
#include "wire/tls.h"

namespace hvd::fuzz {
namespace {

const Duration kPatience = seconds(60);
const std::string kSecret(40, 's');

/// A driver whose one worker is started by nobody, or that waits for agents.
class Job {
 public:
  explicit Job(bool agents) : options_([](const std::string&) { return std::nullopt; }) {
    const std::string file =
        (std::filesystem::temp_directory_path() / fmt::format("hvd-fuzz-door.{}.{}", ::getpid(), agents))
            .string();
    std::map<std::string, std::string> set = {
        {"job", "job"},  {"secret", kSecret},    {"stop_grace", "0.001"}, {"journal", "off"},
        {"spares", "1"}, {"address_file", file}, {"listen", "127.0.0.1"}};
    if (agents) {
      set.insert({"discover_agents", "true"});
    } else {
      set.insert({{"hosts", "a:1"}, {"local_hosts", "true"}});
    }
    for (const auto& [key, value] : set) options_.set(key, value);
    options_.logger =
        std::make_shared<Logger>(HVD_LOG_DEBUG, Callback<hvd_log_fn>(must_be_a_line, nullptr, nullptr));
    driver_ = std::make_unique<driver::Driver>(options_);
    if (agents) {
      driver_->set_command({"/bin/true"}, {});
    } else {
      launch::LaunchFunctions functions;
      functions.start = [this](const launch::LaunchRequest& request) {
        worker_ = request.worker;
        return 0;
      };
      functions.stop = [d = driver_.get()](uint64_t worker, bool) { d->worker_exited(worker, 0); };
      driver_->set_launcher(std::move(functions));
    }
    driver_->start();
    endpoint_ = driver::read_address_file(file).endpoint;
  }
  const std::string& endpoint() const { return endpoint_; }
  uint64_t worker() const { return worker_; }  // the newest
  void must_answer() const {
    HVD_PROMISE(!driver::command({endpoint_, "", kSecret}, "status", "json", kPatience).empty());
  }

 private:
  static void must_be_a_line(void*, hvd_log_level, const char* line) {
    HVD_PROMISE(printable(line, std::string::npos) == line);
  }
  Options options_;
  std::atomic<uint64_t> worker_ = 1;
  std::unique_ptr<driver::Driver> driver_;
  std::string endpoint_;
};

/// What one of them says, with what was asked.
class Liar {
 public:
  Liar(Decisions& d, uint64_t worker) : d_(d), worker_(worker) {}
  std::vector<wire::Bytes> frames;
  std::map<uint64_t, int> asked;

  void say_all(int kind) {
    while (!d_.over() && frames.size() < 40) {
      switch (d_.upto(kind == 0 ? 2 : 9)) {
        case 0: {
          const auto bytes = d_.some(200);
          if (!bytes.empty()) frames.emplace_back(bytes.begin(), bytes.end());
          break;
        }
        case 1: {
          wire::OperatorHelloT hello;
          hello.protocol = protocol();
          say(std::move(hello));
          break;
        }
        case 2: {
          static const char* const kVerbs[] = {"help", "status", "drain", "undrain", "scale", "dance"};
          wire::CommandT command;
          command.id = d_.number();
          command.verb = d_.upto(7) == 7 ? d_.text(80) : kVerbs[d_.upto(5)];
          command.argument = d_.text(40);
          if (command.verb == "stop") command.verb = "top";
          ++asked[command.id];
          say(std::move(command));
          break;
        }
        case 3: {
          wire::ApplyT apply;
          apply.protocol = protocol();
          apply.host = d_.coin() ? "a" : d_.text(9);
          apply.slot = static_cast<int32_t>(d_.number());
          say(std::move(apply));
          break;
        }
        case 4: {
          wire::AgentHelloT hello;
          hello.protocol = protocol();
          hello.abi = HVD_ABI_VERSION;
          hello.host = d_.coin() ? "a" : d_.text(9);
          hello.slots = static_cast<int32_t>(d_.number());
          hello.instance = d_.number();
          hello.received = d_.number();
          say(std::move(hello));
          break;
        }
        case 5: {
          wire::AgentOutputT output;
          output.number = d_.number();
          output.worker = d_.number();
          say(std::move(output));
          break;
        }
        case 6: {
          wire::HelloT hello;
          hello.protocol = protocol();
          hello.host = d_.text(5);
          hello.pid = static_cast<int64_t>(d_.number());
          hello.resumes = d_.coin();
          hello.life = static_cast<int32_t>(d_.number());
          hello.life_token = std::make_unique<wire::Digest>(d_.number(), 1);
          say(std::move(hello));
          break;
        }
        case 7: {
          wire::ReadyT ready;
          ready.has_state = d_.coin();
          ready.revision = d_.number();
          say(std::move(ready));
          break;
        }
        case 8: {
          wire::ResumeT resume;
          resume.rank = static_cast<int32_t>(d_.number());
          resume.size = static_cast<int32_t>(d_.number());
          resume.epoch = d_.number();
          resume.revision = d_.number();
          say(std::move(resume));
          break;
        }
        default: {
          wire::LeavingT leaving;
          leaving.timeout_ms = static_cast<int64_t>(d_.number());
          leaving.message = d_.text(9);
          say(std::move(leaving));
        }
      }
    }
  }

 private:
  uint32_t protocol() { return d_.upto(31) == 31 ? static_cast<uint32_t>(d_.number()) : wire::kProtocol; }
  template <class Table>
  void say(Table body) {
    const bool odd = d_.upto(31) == 31;
    auto message = wire::envelope(odd ? d_.text(5) : "job", odd ? d_.number() : worker_,
                                  odd ? d_.number() : 0, std::move(body));
    message.sequence = odd ? d_.number() : ++sequence_;
    if (odd) message.term = d_.number();
    frames.push_back(wire::encode(message));
  }
  Decisions& d_;
  const uint64_t worker_;
  uint64_t sequence_ = 0;
};

void must_be_an_answer(std::span<const uint8_t> frame, std::map<uint64_t, int>* asked) {
  const wire::EnvelopeT message = wire::decode(frame);
  if (const auto* answer = message.body.AsCommandAnswer()) {
    HVD_PROMISE(--(*asked)[answer->id] >= 0);
    for (const char c : answer->text) HVD_PROMISE(c == '\n' || static_cast<uint8_t>(c) >= 0x20);
  }
  if (const auto* refused = message.body.AsRefused())
    HVD_PROMISE(printable(refused->reason, std::string::npos) == refused->reason);
}

}  // namespace

void one_input(std::span<const uint8_t> data) {
  // A driver takes a second to end: each serves some inputs.
  // OpenSSL cleans up at exit, and the last drivers must have ended by then: it is used before they are made.
  static const wire::TlsContext first = wire::make_client_context(kSecret, wire::kOperatorIdentity);
  static std::unique_ptr<Job> jobs[2];
  static int served[2];
  Decisions d(data);
  const auto kind = static_cast<int>(d.upto(4));
  const bool agents = kind == 2;
  if (served[agents]++ % 32 == 0) {
    jobs[agents].reset();
    jobs[agents] = std::make_unique<Job>(agents);
  }
  const Job& job = *jobs[agents];
  const uint64_t worker = job.worker();
  const std::string identities[] = {wire::kOperatorIdentity, wire::kAdmissionIdentity,
                                    wire::agent_identity("a"), wire::worker_identity(worker),
                                    wire::kJobIdentity};
  Liar liar(d, worker);
  liar.say_all(kind);
  std::promise<void> said, over;
  std::shared_ptr<wire::Channel> channel;
  Loop loop("liar");
  wire::connect_channel(
      loop, job.endpoint(), kSecret, identities[kind], {}, kPatience,
      [&](std::shared_ptr<wire::Channel> made, const Status& why) {
        HVD_PROMISE(made != nullptr && why.ok());
        channel = std::move(made);
        channel->trust();
        channel->set_handlers({[&](std::span<const uint8_t> frame) { must_be_an_answer(frame, &liar.asked); },
                               [](const Status&) {}});
        for (wire::Bytes& frame : liar.frames) channel->send(std::move(frame));
        said.set_value();
      });
  HVD_PROMISE(said.get_future().wait_for(kPatience) == std::future_status::ready);
  job.must_answer();
  // The driver hangs up when it has read what there is. The channel's timers must not outlive the loop.
  const auto let_go = [&] {
    channel.reset();
    over.set_value();
  };
  loop.post([&] { channel->close_then(kPatience, [&] { loop.post(let_go); }); });
  HVD_PROMISE(over.get_future().wait_for(2 * kPatience) == std::future_status::ready);
  job.must_answer();
}

std::vector<Bytes> seeds() {
  return {
      {0, 1, 0, 0, 2, 5, 0, 1, 4, 'j', 's', 'o', 'n', 0, 2, 6, 0, 2, 1, 'a', 0},  // an operator asks, drains
      {1, 3, 0, 1, 0, 0},                                                         // a worker comes by address
      {2, 4, 0, 1, 3, 7, 0, 0, 5, 1, 1, 0},  // an agent, and what it prints
      {3, 6, 0, 0, 9, 0, 0, 1, 0, 7, 0, 1, 0, 9, 9, 1, 'x', 0, 8, 0, 1, 1, 1, 0},  // a worker
      {4, 3, 0, 1, 0, 0},
  };
}

}  // namespace hvd::fuzz
