// Host files, and the nodes of a Slurm allocation.
#include "driver/hostfile.h"

#include <gtest/gtest.h>

#include "base/status.h"

namespace hvd::driver {
namespace {

using Hosts = std::vector<membership::HostSlots>;

template <class Function>
std::string refusal(Function parse) {
  try {
    parse();
  } catch (const Error& e) {
    EXPECT_EQ(e.status().code, HVD_INVALID);
    return e.what();
  }
  return "accepted";
}

std::string refused_file(const std::string& text) {
  return refusal([&] { parse_hostfile("F", text, 1); });
}

std::string repeated(const std::string& text, size_t times) {
  std::string all;
  for (size_t i = 0; i < times; ++i) all += text;
  return all;
}

TEST(Hostfile, LinesOfEveryKindAreRead) {
  EXPECT_EQ(
      parse_hostfile("F",
                     "# the cluster\n\nnode1 slots=2\n node2\tslots=3 max_slots=4 # big\r\nnode3\nnode4:5\n"
                     "[fd77::1]:2\nnode1 slots=1",
                     7),
      (Hosts{{"node1", 3}, {"node2", 3}, {"node3", 7}, {"node4", 5}, {"fd77::1", 2}}));
}

TEST(Hostfile, AWrongLineIsNamed) {
  for (const auto& [text, part] : {std::pair<std::string, std::string>{"", "names no host"},
                                   {"a\nb slots=0", "line 2: 'slots=0'"},
                                   {"a slots=x", "'slots=x'"},
                                   {"a slots", "'slots' is not known"},
                                   {"a rack=3", "'rack=3' is not known"},
                                   {"a,b slots=1", "is no host"},
                                   {"a!b", "line 1"},
                                   {"a slots=99999999999", "expected 1 to"},
                                   {"a slots=1048576\na slots=1048576", "2097152 slots with host a"},
                                   {"a slots=1048576\nb",
                                    "line 2: 1048577 slots with host b: expected at "
                                    "most 1048576 of all hosts together"}}) {
    EXPECT_NE(refused_file(text).find(part), std::string::npos) << text << ": " << refused_file(text);
  }
  EXPECT_NE(refusal([] { read_hostfile("/nonexistent/hosts", 1); }).find("/nonexistent/hosts"),
            std::string::npos);
}

TEST(SlurmNodes, AreExpanded) {
  EXPECT_EQ(parse_slurm_nodes("n1", "", 4), (Hosts{{"n1", 4}}));
  EXPECT_EQ(parse_slurm_nodes("n[08-10,12],login", "2(x3),1,4", 1),
            (Hosts{{"n08", 2}, {"n09", 2}, {"n10", 2}, {"n12", 1}, {"login", 4}}));
  EXPECT_EQ(parse_slurm_nodes("r[1-2]n[1-2]", "", 1),
            (Hosts{{"r1n1", 1}, {"r1n2", 1}, {"r2n1", 1}, {"r2n2", 1}}));
  EXPECT_EQ(parse_slurm_nodes("n[1-2]-ib", "3(x2)", 1), (Hosts{{"n1-ib", 3}, {"n2-ib", 3}}));
}

TEST(SlurmNodes, WhatCannotBeMeantIsNamed) {
  for (const auto& [nodes, tasks] : {std::pair<std::string, std::string>{"", ""},
                                     {"n[1-", ""},
                                     {"n[3-1]", ""},
                                     {"n[a]", ""},
                                     {"n[1-99999999]", ""},
                                     {"n[1-9999]m[1-9999]", ""},
                                     {"n1", "2,2"},
                                     {"n1", "x"},
                                     {"n1", "0"},
                                     {"n[1-2]", "2(x3)"},
                                     {"n[1-2]", "2(x2"},
                                     {"n[1-60000]", repeated("1(x60000),", 10000)},
                                     {"n[1-2]", "99999999,1"},
                                     {"n[1-2]", "1048576,1"},
                                     {repeated("[1]", 40000), ""},
                                     {"n[" + repeated("0", 100000) + "1]", ""},
                                     {repeated("n", 300), ""}}) {
    EXPECT_NE(
        refusal([&nodes = nodes, &tasks = tasks] { parse_slurm_nodes(nodes, tasks, 1); }).find("SLURM_"),
        std::string::npos)
        << nodes.substr(0, 100) << ' ' << tasks.substr(0, 100);
  }
}

}  // namespace
}  // namespace hvd::driver
