// What a manifest says, and what becomes of an environment by it.
#include "base/modules.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace hvd {
namespace {

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

TEST(EnvironmentRules, SetDefaultAndUnset) {
  EnvironmentRules rules;
  for (const char* line : {"default A=1", "default B=2", "unset C", "set D=x y=z", "  set E=", "set B=3"})
    EXPECT_TRUE(rules.take(line)) << line;
  const Strings given = {"A=mine", "C=old", "D=old"};
  EXPECT_EQ(rules.added_to(given), (Strings{"D=x y=z", "E=", "B=3"})) << "the last of a name counts";
  EXPECT_EQ(rules.without(given), (Strings{"A=mine", "D=old"}));
  EnvironmentRules later;
  ASSERT_TRUE(later.take("unset A"));
  rules.append(later);
  EXPECT_EQ(rules.added_to(given).front(), "A=1") << "what is unset has no value of its own";
}

TEST(EnvironmentRules, OtherLinesAreNotTaken) {
  EnvironmentRules rules;
  for (const char* line :
       {"", "ready", "set", "set A", "set =1", "unset", "unset A=1", "default", "setA=1", "# set A=1"})
    EXPECT_FALSE(rules.take(line)) << line;
  EXPECT_TRUE(rules.added_to({}).empty());
}

TEST(Manifest, SaysWhatTheModuleIsWithoutLoadingIt) {
  const Manifest manifest = parse_manifest(
      "wide_elastic", "/modules",
      "# a comment\nserves wide\nmemory host\nhelper wide-helper\nneeds a wide, flat road\n"
      "default WIDE=1\nlauncher 7 WIDE_RANK WIDE_SIZE\nlauncher x WIDE_RANK\nnews from later\n");
  EXPECT_EQ(manifest.module, "wide_elastic");
  EXPECT_EQ(manifest.serves, "wide");
  EXPECT_TRUE(manifest.host_memory);
  EXPECT_EQ(manifest.helper, "wide-helper");
  EXPECT_EQ(manifest.needs, "a wide, flat road");
  EXPECT_EQ(manifest.variables.added_to({}), Strings{"WIDE=1"});
  ASSERT_EQ(manifest.launchers.size(), 1u);
  EXPECT_EQ(manifest.launchers[0].order, 7);
  EXPECT_EQ(manifest.launchers[0].variable, "WIDE_RANK");
  EXPECT_EQ(manifest.launchers[0].count, "WIDE_SIZE");
  EXPECT_EQ(parse_manifest("m", "/", "helper ../../bin/sh\n").helper, "")
      << "a program beside the manifest, no other";
}

TEST(Manifest, IsFoundInTheModulesDirectories) {
  std::string first = (fs::temp_directory_path() / "hvd-manifest-XXXXXX").string(), second = first;
  ASSERT_NE(mkdtemp(first.data()), nullptr);
  ASSERT_NE(mkdtemp(second.data()), nullptr);
  std::ofstream(first + "/b.manifest") << "serves first";
  std::ofstream(second + "/b.manifest") << "serves second\n";
  std::ofstream(second + "/a.manifest") << "serves other\n";
  std::ofstream(second + "/huge.manifest") << std::string(100000, '#') << "\nserves huge\n";
  fs::create_directory(second + "/folder.manifest");
  Options options;
  options.set("plugin_path", first + ":" + second);
  const std::vector<Manifest> manifests = read_manifests(options);
  ASSERT_NE(serving(manifests, "first"), nullptr);
  EXPECT_EQ(serving(manifests, "first")->directory, fs::path(first));
  EXPECT_EQ(serving(manifests, "second"), nullptr) << "of one name the first counts";
  ASSERT_NE(serving(manifests, "other"), nullptr);
  EXPECT_EQ(serving(manifests, "a"), serving(manifests, "other")) << "by its own name too";
  EXPECT_EQ(serving(manifests, "huge"), nullptr);
  EXPECT_EQ(serving(manifests, ""), nullptr);
  fs::remove_all(first);
  fs::remove_all(second);
}

}  // namespace
}  // namespace hvd
