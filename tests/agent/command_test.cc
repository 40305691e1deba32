// Templates that start agents, names of this machine, and environments of workers.
#include "agent/command.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "agent/environment.h"
#include "base/status.h"

namespace hvd::agent {
namespace {

using Words = std::vector<std::string>;

std::string refusal(const std::string& text) {
  try {
    parse_template(text);
  } catch (const Error& e) {
    EXPECT_EQ(e.status().code, HVD_INVALID);
    return e.what();
  }
  return "accepted";
}

TEST(Template, IsCutAsAShellWould) {
  EXPECT_EQ(parse_template("ssh  {host}"), (Words{"ssh", "{host}"}));
  EXPECT_EQ(parse_template("ssh -o 'A B' \"-o C\\\"D\" x\\ y@{host}"),
            (Words{"ssh", "-o", "A B", "-o C\"D", "x y@{host}"}));
  EXPECT_EQ(parse_template("kubectl exec -i {host} -c '' --"),
            (Words{"kubectl", "exec", "-i", "{host}", "-c", "", "--"}));
}

TEST(Template, WhatCannotBeMeantIsNamed) {
  for (const auto& [text, what] : {std::pair<std::string, std::string>{"", "no word"},
                                   {"ssh", "no {host}"},
                                   {"ssh '{host}", "quote is not closed"},
                                   {"ssh {host} \\", "ends with a backslash"},
                                   {"ssh {hots}", "{hots} is not known"},
                                   {"ssh {host", "{host is not known"}}) {
    EXPECT_NE(refusal(text).find(what), std::string::npos) << text << ": " << refusal(text);
  }
}

TEST(Template, OnlyWhatARemoteShellReadsAgainIsQuoted) {
  const Words agent = {"/opt/my tools/hvdrun", "--join", "[fd77::1]:47,10.0.0.1:47", "--host", "b"};
  EXPECT_EQ(agent_command(parse_template("/usr/bin/ssh -p 22 u@{host}"), "b", agent),
            (Words{"/usr/bin/ssh", "-p", "22", "u@b", "'/opt/my tools/hvdrun'", "--join",
                   "'[fd77::1]:47,10.0.0.1:47'", "--host", "b"}));
  EXPECT_EQ(agent_command(parse_template("srun -w {host}"), "b", agent),
            (Words{"srun", "-w", "b", "/opt/my tools/hvdrun", "--join", "[fd77::1]:47,10.0.0.1:47", "--host",
                   "b"}));
  EXPECT_EQ(quoted("it's"), "'it'\\''s'");
  EXPECT_EQ(quoted(""), "''");
  EXPECT_EQ(quoted("$HOME"), "'$HOME'");
}

TEST(OwnNames, AreThisMachines) {
  const std::set<std::string> names = own_names();
  EXPECT_TRUE(is_own(names, "localhost"));
  EXPECT_TRUE(is_own(names, "127.0.0.1"));
  EXPECT_TRUE(is_own(names, "127.0.1.1"));
  EXPECT_TRUE(is_own(names, "::1"));
  EXPECT_FALSE(is_own(names, "a-name-that-no-machine-has"));
  EXPECT_FALSE(is_own(names, ""));
}

TEST(Endpoints, AreThoseThatOthersReach) {
  EXPECT_EQ(reachable_endpoints("10.1.2.3", 47), (Words{"10.1.2.3:47"}));
  EXPECT_EQ(reachable_endpoints("fd77::1", 47), (Words{"[fd77::1]:47"}));
  const Words all = reachable_endpoints("0.0.0.0", 47);
  EXPECT_FALSE(all.empty());
  EXPECT_TRUE(std::none_of(all.begin(), all.end(),
                           [](const auto& e) { return e.find("0.0.0.0") == 0 || e[0] == '['; }));
}

TEST(Environments, OfTheHostStayWhatOfTheJobTravels) {
  const Words driver = {"PATH=/driver", "HOME=/home/driver", "LANG=de_DE.UTF-8", "SLURM_NODEID=0", "EMPTY="};
  const Words agent = {"PATH=/agent", "HOME=/home/agent", "TMPDIR=/scratch", "HVD_SECRET=hvd-key:agent/b:00",
                       "OTHER=1"};
  const Words request = {"HVD_WORKER=3", "HVD_DRIVER=0.0.0.0:1", "HVD_SECRET=hvd-key:worker/3:11", "HOME=/x"};
  EXPECT_EQ(worker_environment(driver, agent, false, request, "10.0.0.1:47"),
            (Words{"EMPTY=", "HOME=/x", "HVD_DRIVER=10.0.0.1:47", "HVD_SECRET=hvd-key:worker/3:11",
                   "HVD_WORKER=3", "LANG=de_DE.UTF-8", "PATH=/driver", "TMPDIR=/scratch"}));
  EXPECT_EQ(worker_environment({}, agent, true, {"HVD_WORKER=3"}, "10.0.0.1:47"),
            (Words{"HOME=/home/agent", "HVD_DRIVER=10.0.0.1:47", "HVD_WORKER=3", "OTHER=1", "PATH=/agent",
                   "TMPDIR=/scratch"}));
  EXPECT_EQ(path_of(driver), "/driver");
}

TEST(Environments, NoSecretIsSent) {
  EXPECT_EQ(sendable({"HVD_SECRET=s", "HVD_SECRET_FILE=/f", "BASH_FUNC_x%%=() { }", "HVD_BACKEND=tcp"}),
            (Words{"HVD_BACKEND=tcp"}));
}

}  // namespace
}  // namespace hvd::agent
