// Hosts as text, scripts that fail in every way, callbacks that hang.
#include "driver/discovery.h"

#include <gtest/gtest.h>

#include "driver/settings.h"
#include "loop_support.h"

namespace hvd::driver {
namespace {

using test::Folder;
using test::on_loop;
using test::RecordedLog;
using test::Recorder;

using Hosts = std::vector<membership::HostSlots>;
struct Answer {
  Status status;
  Hosts hosts;
};

std::string why_not(const std::string& text) {
  try {
    parse_fixed_hosts(text, 1);
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code, HVD_INVALID);
    return error.what();
  }
  return "";
}

TEST(FixedHosts, AreParsed) {
  EXPECT_EQ(parse_fixed_hosts("a:2,b:3", 1), (Hosts{{"a", 2}, {"b", 3}}));
  EXPECT_EQ(parse_fixed_hosts(" a , [::1]:2,[fe80::1]", 4), (Hosts{{"a", 4}, {"::1", 2}, {"fe80::1", 4}}));
  EXPECT_EQ(describe_hosts({{"a", 2}, {"::1", 1}}), "a:2, [::1]:1");
}

TEST(FixedHosts, SayWhatIsWrong) {
  EXPECT_NE(why_not("a:1,a:2").find("host a is named twice"), std::string::npos);
  EXPECT_NE(why_not("a:0").find("0 slots"), std::string::npos);
  EXPECT_NE(why_not("a:-1").find("-1 slots"), std::string::npos);
  EXPECT_NE(why_not("a:x").find("'a:x'"), std::string::npos);
  EXPECT_NE(why_not("a:99999999999").find("number of slots"), std::string::npos);
  EXPECT_NE(why_not("a:1048576,b").find("1048577 slots with host b: expected at most 1048576 of all hosts"),
            std::string::npos);
  EXPECT_NE(why_not("").find("without a name"), std::string::npos);
  EXPECT_NE(why_not("a:1,").find("without a name"), std::string::npos);
  EXPECT_NE(why_not("::1:2").find("[address]:slots"), std::string::npos);
  EXPECT_NE(why_not("[::1:2").find("]"), std::string::npos);
  EXPECT_NE(why_not("a b:2").find("'a b' is no host name"), std::string::npos);
  EXPECT_NE(why_not("-F:2").find("'-F' is no host name"), std::string::npos)
      << "ssh would take it for an option";
}

// A search of the list for each host would take minutes here.
TEST(DiscoveryOutput, AMegabyteOfHostsIsRead) {
  std::string text;
  for (int i = 0; i < 65536; ++i) text += "host" + std::to_string(i) + ":1\n";
  const Hosts hosts = parse_discovery_output(text, 1);
  EXPECT_EQ(hosts.size(), 65536u);
  check_hosts(hosts);
  std::string with_commas = text.substr(0, text.size() - 1);
  std::replace(with_commas.begin(), with_commas.end(), '\n', ',');
  EXPECT_EQ(parse_fixed_hosts(with_commas, 1), hosts);
  try {
    parse_discovery_output(text + "more:1\n", 1);
    FAIL() << "taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("more than 65536 hosts"), std::string::npos) << error.what();
  }
}

TEST(DiscoveryOutput, IsParsedByLine) {
  EXPECT_EQ(parse_discovery_output("a:2\n\n# two\n b # spare\r\n[::1]:3", 5),
            (Hosts{{"a", 2}, {"b", 5}, {"::1", 3}}));
  EXPECT_TRUE(parse_discovery_output("", 1).empty());
  try {
    parse_discovery_output("a:1\n\nnot a host\n", 1);
    FAIL() << "rubbish was taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("line 3: 'not a host'"), std::string::npos) << error.what();
  }
  EXPECT_THROW(parse_discovery_output("a:1\na:1\n", 1), Error);
}

// Of 65,536 hosts with 2^20 slots each, the number of all slots has 36 bits.
TEST(Hosts, TogetherHaveNoMoreSlotsThanAGenerationMembers) {
  const Hosts most{{"a", kMostSlots - 1}, {"b", 1}};
  EXPECT_EQ(parse_fixed_hosts("a:1048575,b", 1), most);
  EXPECT_EQ(parse_discovery_output("a:1048575\nb:1\n", 1), most);
  check_hosts(most);
  Options options([](const std::string&) { return std::nullopt; });
  EXPECT_EQ(membership_config(read_settings(options), most, false).np, kMostSlots);
  std::string text;
  for (int i = 0; i < 2048; ++i) text += "h" + std::to_string(i) + ":1048576\n";
  for (const auto& ask :
       {std::function<void()>([&] { parse_discovery_output(text, 1); }), std::function<void()>([&] {
          check_hosts({{"h0", 1 << 20}, {"h1", 1 << 20}});
        })}) {
    try {
      ask();
      FAIL() << "taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.status().code, HVD_UNAVAILABLE);
      EXPECT_NE(std::string(error.what())
                    .find("2097152 slots with host h1: expected at most 1048576 of all hosts together"),
                std::string::npos)
          << error.what();
    }
  }
}

class Discovery : public ::testing::Test {
 protected:
  void make_script(const std::string& body, Duration timeout = seconds(30)) {
    make(folder.script("discover", body), timeout);
  }
  void make(const std::string& program, Duration timeout) {
    on_loop(loop, [&] { discovery = make_script_discovery(loop, program, 3, timeout, log.logger()); });
  }
  void make_callback(DiscoverFunction discover, Duration timeout) {
    on_loop(loop, [&] { discovery = make_callback_discovery(loop, std::move(discover), timeout); });
  }
  Answer ask() {
    const size_t before = answers.all().size();
    on_loop(loop, [&] {
      discovery->discover([this](const Status& status, Hosts hosts) {
        answers.add({status, std::move(hosts)});
      });
    });
    EXPECT_TRUE(answers.wait_count(before + 1)) << "no answer";
    return answers.all().back();
  }
  void close(Duration grace = seconds(30)) {
    on_loop(loop, [&] {
      if (discovery) discovery->close(grace);
      discovery.reset();
    });
  }
  void TearDown() override { close(); }

  Folder folder;
  RecordedLog log;
  Recorder<Answer> answers;
  std::unique_ptr<HostDiscovery> discovery;
  Loop loop{"test"};
};

TEST_F(Discovery, ScriptTellsHosts) {
  make_script("echo a:2; echo b\necho careful >&2\n");
  const Answer answer = ask();
  EXPECT_TRUE(answer.status.ok()) << answer.status.message;
  EXPECT_EQ(answer.hosts, (Hosts{{"a", 2}, {"b", 3}}));
  EXPECT_TRUE(log.wait_for("careful")) << log.text();
  EXPECT_EQ(ask().hosts.size(), 2u);
}

TEST_F(Discovery, ScriptThatFailsSaysHow) {
  make_script("echo a:2; exit 4\n");
  EXPECT_NE(ask().status.message.find("exited with status 4"), std::string::npos);
  close();
  make_script("kill -9 $$\n");
  EXPECT_NE(ask().status.message.find("killed by signal 9 (SIGKILL)"), std::string::npos);
  close();
  make_script("echo 'line one is fine?'\n");
  EXPECT_NE(ask().status.message.find("line 1"), std::string::npos);
  close();
  make(folder.path("missing"), seconds(30));
  EXPECT_NE(ask().status.message.find("command not found"), std::string::npos);
}

TEST_F(Discovery, ScriptWithTooManySlotsFails) {
  make_script("for i in $(seq 2048); do echo h$i:1048576; done\n");
  const Answer answer = ask();
  EXPECT_EQ(answer.status.code, HVD_UNAVAILABLE);
  EXPECT_NE(answer.status.message.find("line 2: 2097152 slots with host h2"), std::string::npos)
      << answer.status.message;
  EXPECT_TRUE(answer.hosts.empty());
}

TEST_F(Discovery, ScriptThatHangsIsKilledWithItsChildren) {
  make_script(
      "sleep 1000 & echo $! > " + folder.path("child") + "\necho $$ > " + folder.path("self") + "\nwait\n",
      seconds(1));
  const Answer answer = ask();
  EXPECT_NE(answer.status.message.find("did not end within 1 s"), std::string::npos) << answer.status.message;
  for (const char* name : {"child", "self"}) {
    const pid_t pid = std::stoi(test::read_file(folder.path(name)));
    EXPECT_TRUE(test::eventually([&] { return !test::alive(pid); })) << name << " lives on";
  }
}

TEST_F(Discovery, ScriptThatPrintsWithoutEndIsKilled) {
  make_script("exec yes\n");
  EXPECT_NE(ask().status.message.find("more than 1048576 bytes"), std::string::npos);
}

TEST_F(Discovery, AScriptGetsNoSecret) {
  for (const char* name : {"HVD_SECRET", "HVD_SECRET_FILE"}) ::setenv(name, "0123456789", 1);
  make_script("env >&2; echo end >&2; echo ${HVD_SECRET:-none}${HVD_SECRET_FILE:-nowhere}:1\n");
  EXPECT_EQ(ask().hosts, (Hosts{{"nonenowhere", 1}}));
  EXPECT_TRUE(log.wait_for(": end")) << log.text();
  EXPECT_EQ(log.text().find("0123456789"), std::string::npos) << log.text();
  for (const char* name : {"HVD_SECRET", "HVD_SECRET_FILE"}) ::unsetenv(name);
}

TEST_F(Discovery, AScriptCanNotFillTheLog) {
  make_script("i=0; while [ $i -lt 500 ]; do echo no >&2; i=$((i + 1)); done; echo a:1\n");
  EXPECT_EQ(ask().hosts, (Hosts{{"a", 1}}));
  EXPECT_LE(log.lines.all().size(), 101u);
  EXPECT_TRUE(log.wait_for("more lines follow and are left out"));
}

TEST_F(Discovery, CallbackTellsHosts) {
  int32_t result = 0;
  make_callback(
      [&](Hosts* hosts) {
        hosts->push_back({"a", 2});
        return result;
      },
      seconds(30));
  EXPECT_EQ(ask().hosts, (Hosts{{"a", 2}}));
  result = 7;
  EXPECT_NE(ask().status.message.find("returned 7"), std::string::npos);
}

TEST_F(Discovery, CallbackWithUnfitHostsFails) {
  make_callback(
      [&](Hosts* hosts) {
        *hosts = {{"a", 2}, {"a", 3}};
        return 0;
      },
      seconds(30));
  EXPECT_NE(ask().status.message.find("named twice"), std::string::npos);
}

TEST_F(Discovery, CallbackThatHangsBlocksNobody) {
  std::promise<void> release;
  std::shared_future<void> released = release.get_future().share();
  auto kept = std::make_shared<int>(0);
  const std::weak_ptr<int> watched = kept;
  make_callback(
      [released, kept](Hosts* hosts) {
        released.wait();
        hosts->push_back({"late", 1});
        return 0;
      },
      milliseconds(50));
  kept.reset();
  EXPECT_NE(ask().status.message.find("did not return within"), std::string::npos);
  EXPECT_NE(ask().status.message.find("has not returned yet"), std::string::npos);
  close(milliseconds(10));  // returns although the callback does not
  EXPECT_FALSE(watched.expired());
  release.set_value();
  // What it used goes when it returns, and its late answer is nobody's.
  EXPECT_TRUE(test::eventually([&] { return watched.expired(); }));
  EXPECT_EQ(answers.all().size(), 2u);
}

std::string settings_error(const std::vector<std::pair<std::string, std::string>>& values) {
  Options options([](const std::string&) { return std::nullopt; });
  for (const auto& [key, text] : values) options.set(key, text);
  try {
    read_settings(options);
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code, HVD_INVALID);
    return error.what();
  }
  return "";
}

TEST(Settings, LadderIsChecked) {  // contract 12
  EXPECT_EQ(settings_error({}), "");
  const auto both = [](const std::string& text, const char* a, const char* b) {
    return text.find(a) != std::string::npos && text.find(b) != std::string::npos;
  };
  EXPECT_TRUE(both(settings_error({{"min_np", "3"}, {"np", "2"}}), "min_np is 3", "np is 2"));
  EXPECT_TRUE(both(settings_error({{"np", "3"}, {"max_np", "2"}}), "np is 3", "max_np is 2"));
  EXPECT_TRUE(both(settings_error({{"min_np", "3"}, {"max_np", "2"}}), "min_np is 3", "max_np is 2"));
  EXPECT_TRUE(both(settings_error({{"heartbeat_interval", "5"}, {"heartbeat_timeout", "10"}}),
                   "heartbeat_interval is 5", "heartbeat_timeout is 10"));
  EXPECT_TRUE(both(settings_error({{"restart_delay_min", "5"}, {"restart_delay_max", "4"}}),
                   "restart_delay_min is 5", "restart_delay_max is 4"));
  EXPECT_TRUE(both(settings_error({{"blocklist_cooldown_min", "5"}, {"blocklist_cooldown_max", "4"}}),
                   "blocklist_cooldown_min is 5", "blocklist_cooldown_max is 4"));
  EXPECT_NE(settings_error({{"secret", "short"}}).find("5 characters"), std::string::npos);
  EXPECT_NE(settings_error({{"listen", "127.0.0.1:x"}}).find("listen"), std::string::npos);
}

TEST(Settings, SizesFollowFromTheHosts) {
  Options options([](const std::string&) { return std::nullopt; });
  const Hosts hosts{{"a", 2}, {"b", 2}};
  membership::MembershipConfig config = membership_config(read_settings(options), hosts, false);
  EXPECT_EQ(config.np, 4);
  EXPECT_EQ(config.min_np, 4);
  EXPECT_EQ(config.max_np, 0);
  config = membership_config(read_settings(options), hosts, true);
  EXPECT_EQ(config.max_np, 4);
  options.set("np", int64_t{3});
  options.set("min_np", int64_t{1});
  config = membership_config(read_settings(options), hosts, true);
  EXPECT_EQ(config.np, 3);
  EXPECT_EQ(config.min_np, 1);
  EXPECT_EQ(config.max_np, 3);
  options.set("min_np", int64_t{0});
  options.set("np", int64_t{5});
  EXPECT_THROW(membership_config(read_settings(options), hosts, true), Error);
  EXPECT_EQ(membership_config(read_settings(options), hosts, false).min_np, 5);
}

}  // namespace
}  // namespace hvd::driver
