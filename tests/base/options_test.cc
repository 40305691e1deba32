// Options: every type from every source, and what is refused.
#include "base/options.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <map>
#include <random>
#include <sstream>

#include "base/status.h"

namespace hvd {
namespace {

using Variables = std::map<std::string, std::string>;

Options with(const Variables& variables) {
  return Options([variables](const std::string& name) -> std::optional<std::string> {
    auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

template <class Call>
void refuses(Call call, std::initializer_list<const char*> parts) {
  try {
    call();
    ADD_FAILURE() << "was accepted; expected a message with '" << *parts.begin() << "'";
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code, HVD_INVALID);
    for (const char* part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << error.what() << "\ndoes not say " << part;
    }
  }
}

TEST(Options, EveryDefaultFitsItsType) {
  const Options options = with({});
  std::istringstream lines(Options::describe());
  std::string key, rest;
  size_t count = 0;
  while (lines >> key && std::getline(lines, rest)) {
    EXPECT_NO_THROW(options.text(key)) << key;
    EXPECT_FALSE(options.is_set(key)) << key;
    EXPECT_NE(rest.find("HVD_"), std::string::npos) << key << rest;
    ++count;
  }
  EXPECT_GT(count, 30U);
}

TEST(Options, TextIsParsedAsTheOptionsType) {
  Options options = with({});
  options.set("job", std::string("train"));
  options.set("np", std::string("12"));
  options.set("init_timeout", std::string("2.5"));
  EXPECT_EQ(options.string("job"), "train");
  EXPECT_EQ(options.integer("np"), 12);
  EXPECT_EQ(options.duration("init_timeout"), milliseconds(2500));
  for (const char* yes : {"1", "true", "yes", "on"}) {
    options.set("restart", std::string("no"));
    options.set("restart", std::string(yes));
    EXPECT_TRUE(options.boolean("restart")) << yes;
  }
  for (const char* no : {"0", "false", "no", "off"}) {
    options.set("restart", std::string("yes"));
    options.set("restart", std::string(no));
    EXPECT_FALSE(options.boolean("restart")) << no;
  }
}

TEST(Options, TypedValuesAreTakenWhereTheyFit) {
  Options options = with({});
  options.set("np", int64_t{3});
  options.set("init_timeout", milliseconds(1500));
  options.set("restart", false);
  EXPECT_EQ(options.integer("np"), 3);
  EXPECT_EQ(options.duration("init_timeout"), milliseconds(1500));
  EXPECT_FALSE(options.boolean("restart"));
}

TEST(Options, DurationsAreSecondsOrHaveAUnit) {
  Options options = with({});
  for (const auto& [text, expected] : std::map<std::string, Duration>{{"2", seconds(2)},
                                                                      {"0.25", milliseconds(250)},
                                                                      {"250ms", milliseconds(250)},
                                                                      {"1.5s", milliseconds(1500)},
                                                                      {"1500us", Duration(1500000)},
                                                                      {"1000001ns", Duration(1000001)},
                                                                      {"2m", seconds(120)},
                                                                      {"0.5h", seconds(1800)},
                                                                      {"1d", seconds(86400)}}) {
    options.set("init_timeout", text);
    EXPECT_EQ(options.duration("init_timeout"), expected) << text;
  }
}

TEST(Options, WrongTypesAreRefused) {
  Options options = with({});
  refuses([&] { options.set("np", milliseconds(1500)); }, {"np", "integer", "duration", "1500ms"});
  refuses([&] { options.set("np", true); }, {"np", "integer", "bool"});
  refuses([&] { options.set("job", int64_t{3}); }, {"job", "string", "integer", "3"});
  refuses([&] { options.set("restart", int64_t{1}); }, {"restart", "bool", "integer"});
  refuses([&] { options.set("init_timeout", int64_t{4}); },
          {"init_timeout", "duration", "hvd_options_set_duration", "integer", "4"});
  refuses([&] { options.set("init_timeout", true); }, {"init_timeout", "duration", "bool"});
}

TEST(Options, BadTextNamesKeyValueAndWhatWasExpected) {
  Options options = with({});
  for (const char* text : {"", "x", "3x", " 3", "3 ", "1e3", "99999999999999999999", "0x10", "-1"}) {
    refuses([&] { options.set("np", std::string(text)); }, {"np", "HVD_NP", text, "an integer from 0"});
  }
  for (const char* text : {"", "fast", "1x", "1 s", "1S", "s", "1s2", "1min", "nan", "inf", "-1", "-1s",
                           "1e+300", "1e300d", "0.0009"}) {
    refuses([&] { options.set("init_timeout", std::string(text)); },
            {"init_timeout", "HVD_INIT_TIMEOUT", text, "a duration from 1ms to 1d"});
  }
  for (const char* text : {"", "TRUE", "2", "ja"}) {
    refuses([&] { options.set("restart", std::string(text)); }, {"restart", text, "true, false"});
  }
  EXPECT_FALSE(options.is_set("np")) << "a value that was refused leaves nothing behind";
  EXPECT_EQ(options.integer("np"), 0);
}

TEST(Options, RangesIncludeTheirEnds) {
  Options options = with({});
  options.set("segment_bytes", int64_t{4096});
  options.set("segment_bytes", int64_t{1} << 30);
  refuses([&] { options.set("segment_bytes", int64_t{4095}); },
          {"segment_bytes", "4095", "4096", "1073741824"});
  refuses([&] { options.set("segment_bytes", (int64_t{1} << 30) + 1); }, {"segment_bytes", "1073741825"});
  options.set("init_timeout", milliseconds(1));
  options.set("init_timeout", seconds(86400));
  refuses([&] { options.set("init_timeout", Duration(999999)); }, {"init_timeout", "999999ns", "1ms", "1d"});
  refuses([&] { options.set("init_timeout", seconds(86401)); }, {"init_timeout", "86401s", "1ms", "1d"});
  EXPECT_EQ(options.integer("segment_bytes"), 1 << 30);
  EXPECT_EQ(options.duration("init_timeout"), seconds(86400));
}

TEST(Options, UnknownKeysAreRefusedEverywhere) {
  Options options = with({{"HVD_NO_SUCH_KEY", "1"}});
  refuses([&] { options.set("no_such_key", std::string("1")); }, {"no_such_key"});
  refuses([&] { options.set("no_such_key", int64_t{1}); }, {"no_such_key"});
  refuses([&] { options.set("no_such_key", seconds(1)); }, {"no_such_key"});
  refuses([&] { options.set("no_such_key", true); }, {"no_such_key"});
  refuses([&] { options.text("no_such_key"); }, {"no_such_key"});
  refuses([&] { options.is_set("no_such_key"); }, {"no_such_key"});
  refuses([&] { options.is_set("NP"); }, {"NP"});
}

// Workers are told durations as texts.
TEST(Options, TheTextOfADurationGivesItAgain) {
  const std::map<std::string, std::string> texts = {{"0", "0"},
                                                    {"600", "600"},
                                                    {"0.25", "0.25"},
                                                    {"1e3", "1000"},
                                                    {"1ns", "0.000000001"},
                                                    {"1000001ns", "0.001000001"},
                                                    {"2m", "120"},
                                                    {"4449444.444404", "4449444.444404"},
                                                    {"8639999.999999999", "8639999.999999999"}};
  for (const auto& [text, expected] : texts) {
    Options first = with({}), second = with({});
    first.set("blocklist_cooldown_max", text);
    EXPECT_EQ(first.text("blocklist_cooldown_max"), expected) << text;
    second.set("blocklist_cooldown_max", expected);
    EXPECT_EQ(second.duration("blocklist_cooldown_max"), first.duration("blocklist_cooldown_max")) << text;
  }
  std::mt19937_64 random(5);
  for (int i = 0; i < 100'000; ++i) {
    const Duration duration(static_cast<int64_t>(random() % (uint64_t{8'640'000} * 1'000'000'000)));
    Options first = with({}), second = with({});
    first.set("blocklist_cooldown_max", duration);
    second.set("blocklist_cooldown_max", first.text("blocklist_cooldown_max"));
    ASSERT_EQ(second.duration("blocklist_cooldown_max"), duration);
  }
}

TEST(Options, EnvironmentStandsInForWhatWasNotSet) {
  Options options =
      with({{"HVD_NP", "5"}, {"HVD_RESTART", "off"}, {"HVD_JOB", "a"}, {"HVD_INIT_TIMEOUT", "0.5"}});
  EXPECT_EQ(options.integer("np"), 5);
  EXPECT_FALSE(options.boolean("restart"));
  EXPECT_EQ(options.string("job"), "a");
  EXPECT_EQ(options.duration("init_timeout"), milliseconds(500));
  EXPECT_TRUE(options.is_set("np"));
  options.set("np", int64_t{6});
  EXPECT_EQ(options.integer("np"), 6) << "what the program sets wins";
  EXPECT_EQ(options.environment("HVD_NP"), "5");
  EXPECT_EQ(options.environment("OMPI_COMM_WORLD_RANK"), std::nullopt);
}

TEST(Options, UnfitEnvironmentIsRefusedWhenItIsRead) {
  Options options = with({{"HVD_NP", "many"}});
  refuses([&] { options.integer("np"); }, {"np", "HVD_NP", "many", "an integer from 0"});
  options.set("np", int64_t{2});
  EXPECT_EQ(options.integer("np"), 2);
}

TEST(Options, SecretsAreNeverShown) {
  Options options = with({});
  try {
    options.set("secret", int64_t{12345});
    FAIL() << "an integer was taken as a secret";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find("12345"), std::string::npos) << error.what();
  }
}

TEST(Options, CopyIsASnapshot) {
  Options options = with({});
  options.set("np", int64_t{1});
  const Options copy = options;
  options.set("np", int64_t{2});
  EXPECT_EQ(copy.integer("np"), 1);
  EXPECT_EQ(copy.logger, options.logger);
}

TEST(Options, TextOfEachTypeCanBeSetAgain) {
  Options options = with({});
  options.set("restart", false);
  options.set("init_timeout", milliseconds(250));
  options.set("np", int64_t{8});
  for (const char* key : {"restart", "init_timeout", "np", "backend"}) {
    const std::string text = options.text(key);
    EXPECT_NO_THROW(options.set(key, text)) << key << " " << text;
    EXPECT_EQ(options.text(key), text);
  }
}

TEST(LogLevel, ParsesNamesAndListsThemOtherwise) {
  EXPECT_EQ(parse_log_level("trace"), HVD_LOG_TRACE);
  EXPECT_EQ(parse_log_level("off"), HVD_LOG_OFF);
  refuses([] { parse_log_level("loud"); }, {"loud", "trace", "warning", "off"});
  refuses([] { parse_log_level(""); }, {"expected"});
}

TEST(Options, WorkersInheritWhatWasSetAndIsTheirs) {
  Options options = with({{"HVD_ENCRYPT", "on"}, {"HVD_MIN_NP", "2"}});
  options.set("divergence_every", int64_t{10});
  options.set("operation_timeout", milliseconds(250));
  options.set("secret", std::string(40, 'x'));
  options.set("discovery_script", std::string("list"));
  EXPECT_EQ(options.for_workers(), (std::vector<std::string>{"HVD_OPERATION_TIMEOUT=0.25", "HVD_ENCRYPT=on",
                                                             "HVD_DIVERGENCE_EVERY=10"}));
}

TEST(Options, ModulesGetTheirsWithDefaults) {
  Options options = with({});
  options.set("checksum", true);
  EXPECT_EQ(options.for_modules(),
            (std::vector<std::pair<std::string, std::string>>{
                {"elastic", "1"}, {"segment_bytes", "1048576"}, {"encrypt", "auto"}, {"checksum", "1"}}));
  options.set("interface", std::string("lo"));
  EXPECT_EQ(options.for_modules().front(), (std::pair<std::string, std::string>{"interface", "lo"}));
}

}  // namespace
}  // namespace hvd
