// Which backends are chosen, and the reasons that are given. The modules are doubles in a directory of each
// test's own, under the names that are looked for.
#include "selection/selection.h"

#include <dlfcn.h>

#include <filesystem>
#include <fstream>

#include "local/address.h"
#include "modules/cluster.h"
#include "selection/composite.h"

namespace hvd::selection::test {
namespace {

namespace fs = std::filesystem;

class Selecting : public ::testing::Test {
 protected:
  Selecting() {
    std::string pattern = (fs::temp_directory_path() / "hvd-selection-XXXXXX").string();
    directory = mkdtemp(pattern.data());
  }
  ~Selecting() override { fs::remove_all(directory); }

  void put(const std::string& name, const std::string& module) {
    fs::copy(std::string(HVD_TEST_MODULES) + "/libhvd_" + module + ".so",
             directory / ("libhvd_" + name + ".so"));
  }
  Options options() {
    Options options([this](const std::string& name) -> std::optional<std::string> {
      const auto found = environment.find(name);
      return found == environment.end() ? std::nullopt : std::optional(found->second);
    });
    options.set("plugin_path", directory.string());
    options.set("local", std::string("off"));
    return options;
  }
  Status select(const std::string& name,
                const std::vector<std::pair<std::string, std::string>>& module_options = {}) {
    Options all = options();
    if (name != "self") all.set("backend", name);
    instance.reset();
    return open(all, name, module_options, {}, &instance);
  }
  std::string choice(hvd_memory memory, hvd_collective collective = HVD_COLLECTIVE_BARRIER) {
    backend::Choice choice;
    const Status status = instance->choice(memory, HVD_DTYPE_FLOAT32, collective, &choice);
    return status.ok() ? choice.name + ": " + choice.reason : status.message;
  }
  bool tcp_is_built() {
    std::shared_ptr<backend::Module> module;
    return backend::find_module(options(), "tcp", &module).ok();
  }

  fs::path directory;
  std::map<std::string, std::string> environment;
  std::unique_ptr<backend::Instance> instance;
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_F(Selecting, AListOfNames) {
  put("tiny", "tiny");
  put("device_double", "device_double");
  for (const char* list : {"tiny,device_double", "device_double,tiny", " device_double , tiny "}) {
    const Status status = select(list);
    ASSERT_TRUE(status.ok()) << status.message;
    EXPECT_EQ(instance->description().name, "tiny");
    EXPECT_EQ(choice(HVD_MEMORY_HOST), std::string("tiny: option backend is ") + list);
    EXPECT_EQ(choice(HVD_MEMORY_CUDA), std::string("device_double: option backend is ") + list);
  }
}

TEST_F(Selecting, EveryNameHasToBeThere) {
  put("tiny", "tiny");
  put("away", "away");
  Status status = select("tiny,away");
  EXPECT_EQ(status.code, HVD_UNAVAILABLE);
  EXPECT_TRUE(has(status.message, "'away'") && has(status.message, "the device is on holiday"))
      << status.message;
  status = select("tiny", {{"refuse", "not today"}});
  EXPECT_EQ(status.code, HVD_UNAVAILABLE);
  EXPECT_TRUE(has(status.message, "not today")) << status.message;
  put("again", "tiny");
  EXPECT_TRUE(has(select("tiny,again").message, "two backends call themselves tiny"));
}

TEST_F(Selecting, WhatIsNoListIsInvalid) {
  for (const char* text :
       {",", "tiny,", "local", ",tiny", "tiny,,away", "tiny,tiny", "auto,tiny", "tiny,self", "a b", " "}) {
    const Status status = select(text);
    EXPECT_EQ(status.code, HVD_INVALID) << text;
    EXPECT_TRUE(has(status.message, "'" + std::string(text) + "'")) << status.message;
  }
}

// What ranks of a host share memory for shows in their addresses.
TEST_F(Selecting, OptionLocalSaysWhatMemoryIsSharedFor) {
  put("tiny", "tiny");
  put("fast", "fast");  // inside a host, it says
  const auto shared = [&](const std::string& backend, const std::string& local) -> std::string {
    Options all = options();
    all.set("backend", backend);
    all.set("local", local);
    instance.reset();
    const Status status = open(all, backend, {}, {}, &instance);
    if (!status.ok()) return status.message;
    std::vector<Offer> offers;
    if (!instance->offers(&offers).ok()) return "no offers";
    return settings_of(offers).back().value;
  };
  for (const auto& [backend, by_itself] : {std::pair("tiny", "on"), std::pair("fast", "messages")}) {
    EXPECT_EQ(shared(backend, "auto"), by_itself);
    EXPECT_EQ(shared(backend, "on"), "on");
    EXPECT_EQ(shared(backend, "messages"), "messages");
    EXPECT_EQ(shared(backend, "off"), "off");
  }
}

TEST_F(Selecting, WithoutMessagesTheHostsBackendIsFoundBesideIt) {
  put("device_double", "device_double");
  if (!tcp_is_built()) put("tiny", "tiny");
  const Status status = select("device_double");
  ASSERT_TRUE(status.ok()) << status.message;
  EXPECT_EQ(instance->description().name, tcp_is_built() ? "tcp" : "tiny");
  EXPECT_TRUE(has(choice(HVD_MEMORY_HOST), "option backend is device_double, where none carries messages"))
      << choice(HVD_MEMORY_HOST);
  EXPECT_EQ(choice(HVD_MEMORY_CUDA), "device_double: option backend is device_double");
}

TEST_F(Selecting, WhatIsNotNamedIsMissedWithAReason) {
  put("tiny", "tiny");
  ASSERT_TRUE(select("tiny").ok());
  EXPECT_EQ(choice(HVD_MEMORY_CUDA),
            "backend tiny does not take CUDA memory; no nccl: option backend is tiny");
}

TEST_F(Selecting, AutoTakesTheHostsFirstAndADevicesBesideIt) {
  put("tiny", "tiny");
  put("nccl", "device_double");
  const Status status = select("auto");
  ASSERT_TRUE(status.ok()) << status.message;
  const std::string host = tcp_is_built() ? "tcp" : "tiny";
  EXPECT_EQ(instance->description().name, host);
  const std::string since =
      tcp_is_built() ? "no launcher started this process" : "nothing that comes before it";
  EXPECT_TRUE(choice(HVD_MEMORY_HOST).starts_with(host + ": auto: " + host + ", since " + since))
      << choice(HVD_MEMORY_HOST);
  if (choice(HVD_MEMORY_CUDA).starts_with("nccl")) GTEST_SKIP() << "there is a real one";
  EXPECT_EQ(choice(HVD_MEMORY_CUDA), "device_double: auto: nccl for device memory");
}

TEST_F(Selecting, AutoDoesWithoutADevices) {
  put("tiny", "tiny");
  put("nccl", "away");
  const Status status = select("auto");
  ASSERT_TRUE(status.ok()) << status.message;
  if (choice(HVD_MEMORY_CUDA).starts_with("nccl")) GTEST_SKIP() << "there is a real one";
  EXPECT_TRUE(has(choice(HVD_MEMORY_CUDA), "no nccl: ")) << choice(HVD_MEMORY_CUDA);
  EXPECT_TRUE(has(choice(HVD_MEMORY_CUDA), "the device is on holiday")) << choice(HVD_MEMORY_CUDA);
}

// Two modules that know launchers, and one that serves the name of one of them where no launcher was: as
// `alpha`, `beta` and `alpha_elastic`.
constexpr const char* kAlpha =
    "memory host\nlauncher 10 ALPHA_SIZE ALPHA_SIZE\nlauncher 20 BOTH_RANK STEP_SIZE\nlauncher 31 COMMON_SIZE COMMON_SIZE\n";
constexpr const char* kBeta =
    "memory host\nlauncher 30 COMMON_SIZE COMMON_SIZE\nlauncher 40 COMMON_RANK STEP_SIZE\n";

class Launched : public Selecting {
 protected:
  Launched() {
    say("alpha", kAlpha);
    say("beta", kBeta);
    say("alpha_elastic", "memory host\nserves alpha\n");
  }
  void say(const std::string& module, const std::string& text) {
    std::ofstream(directory / (module + ".manifest")) << text;
  }
};

TEST_F(Launched, AutoPrefersTheLaunchersModule) {
  for (const char* variable : {"ALPHA_SIZE", "BOTH_RANK"}) {
    environment = {{variable, "2"}};
    EXPECT_EQ(find_launcher(options())->variable, variable);
    EXPECT_EQ(find_launcher(options())->modules, std::vector<std::string>{"alpha"});
  }
  environment = {{"COMMON_SIZE", "2"}, {"COMMON_RANK", "0"}};
  EXPECT_EQ(find_launcher(options())->modules, (std::vector<std::string>{"beta", "alpha"}));
  EXPECT_EQ(find_launcher(options())->processes, 2);
  environment["HVD_DRIVER"] =
      "localhost:1";  // hvdrun started this one, and had been started by that launcher
  EXPECT_FALSE(find_launcher(options()));
  environment = {{"BOTH_RANK", "0"}, {"STEP_SIZE", "3"}};
  EXPECT_EQ(find_launcher(options())->processes, 3);
  environment = {{"BOTH_RANK", "0"}, {"STEP_SIZE", "3x"}};
  EXPECT_EQ(find_launcher(options())->processes, 0);
  environment["TORCHELASTIC_RUN_ID"] = "none";  // torchrun started this one, and had been started by srun
  EXPECT_FALSE(find_launcher(options()));
  environment.clear();
  EXPECT_FALSE(find_launcher(options()));
}

TEST_F(Launched, NoModuleIsAskedBesidesTheOneThatIsNamed) {
  environment = {{"COMMON_SIZE", "2"}};
  Options named = options();
  named.set("backend", std::string("nccl,alpha"));
  EXPECT_EQ(find_launcher(named)->modules, std::vector<std::string>{"alpha"});
  named.set("backend", std::string("nccl,gloo"));
  EXPECT_EQ(find_launcher(named)->modules, (std::vector<std::string>{"beta", "alpha"}));
}

// A module that does not know the launcher's group would be alone in every process.
TEST_F(Launched, AutoLeavesOutAModuleThatDoesNotKnowTheGroup) {
  put("beta", "mpi_double");
  put("tiny", "tiny");
  environment = {{"COMMON_SIZE", "2"}};
  ASSERT_TRUE(select("auto").ok());
  EXPECT_EQ(instance->description().name, tcp_is_built() ? "tcp" : "tiny");
  EXPECT_TRUE(has(choice(HVD_MEMORY_HOST), "module mpi_double does not know of launchers"))
      << choice(HVD_MEMORY_HOST);
}

TEST_F(Launched, TheSurveyLoadsNoModuleThatServesAnothersName) {
  put("alpha", "tiny");
  put("alpha_elastic", "mpi_double");
  const std::string file = directory / "libhvd_alpha_elastic.so";
  const auto report = [&] {
    for (const backend::Report& r : survey(options())) {
      if (r.description.path == fs::canonical(file)) return r;
    }
    return backend::Report{};
  };
  environment = {{"ALPHA_SIZE", "2"}};
  const backend::Report launched = report();
  EXPECT_EQ(launched.description.name, "alpha_elastic");
  EXPECT_EQ(launched.status.code, HVD_UNAVAILABLE);
  EXPECT_TRUE(has(launched.status.message, "serves alpha") && has(launched.status.message, "ALPHA_SIZE"))
      << launched.status.message;
  EXPECT_EQ(dlopen(file.c_str(), RTLD_NOW | RTLD_NOLOAD), nullptr);
  environment.clear();
  EXPECT_TRUE(report().status.ok()) << report().status.message;
  EXPECT_NE(dlopen(file.c_str(), RTLD_NOW | RTLD_NOLOAD), nullptr);
}

TEST_F(Launched, NorIsItLoadedByItsOwnName) {
  put("alpha", "tiny");
  put("alpha_elastic", "mpi_double");
  environment = {{"ALPHA_SIZE", "2"}};
  const Status status = select("alpha_elastic");
  EXPECT_EQ(status.code, HVD_UNAVAILABLE);
  EXPECT_TRUE(has(status.message,
                  "no backend 'alpha_elastic' can be had: it serves alpha in elastic jobs alone, "
                  "and is not loaded where ALPHA_SIZE is set"))
      << status.message;
  EXPECT_EQ(dlopen((directory / "libhvd_alpha_elastic.so").c_str(), RTLD_NOW | RTLD_NOLOAD), nullptr);
  environment.clear();
  EXPECT_TRUE(select("alpha_elastic").ok());
}

TEST_F(Launched, WithoutALauncherAnotherModuleServesTheName) {
  put("alpha", "tiny");
  put("alpha_elastic", "mpi_double");
  ASSERT_TRUE(select("alpha").ok());
  EXPECT_EQ(instance->description().name, "mpi_double");
  environment = {{"ALPHA_SIZE", "2"}};
  ASSERT_TRUE(select("alpha").ok());
  EXPECT_EQ(instance->description().name, "tiny");
  environment["HVD_DRIVER"] = "localhost:1";
  ASSERT_TRUE(select("alpha").ok());
  EXPECT_EQ(instance->description().name, "mpi_double");
}

TEST_F(Launched, AutoTakesNoModuleThatOnlyServesAnothersName) {
  if (tcp_is_built()) GTEST_SKIP() << "tcp comes first";
  put("alpha_elastic", "mpi_double");
  EXPECT_EQ(select("auto").code, HVD_UNAVAILABLE);
}

TEST_F(Selecting, AloneNeedsNoBackendForTheHostsMemory) {
  put("device_double", "device_double");
  ASSERT_TRUE(select("self").ok());
  EXPECT_EQ(instance->description().name, "self");
  EXPECT_EQ(choice(HVD_MEMORY_HOST), "self: this worker is alone");

  Options all = options();
  all.set("backend", std::string("gloo,device_double,nothing"));
  ASSERT_TRUE(open(all, "self", {}, {}, &instance).ok());
  EXPECT_EQ(choice(HVD_MEMORY_HOST), "self: this worker is alone");
  EXPECT_EQ(choice(HVD_MEMORY_CUDA), "device_double: option backend is gloo,device_double,nothing");
  std::vector<Offer> offers;
  ASSERT_TRUE(instance->offers(&offers).ok());
}

// ---- What there is -------------------------------------------------------------------------------

TEST_F(Selecting, TheSurveyTellsOfEveryFile) {
  put("tiny", "tiny");
  put("old", "old");
  put("away", "away");
  std::ofstream(directory / "libhvd_text.so") << "I am not a shared object\n";
  std::ofstream(directory / "libhvd_.so") << "no name\n";
  std::ofstream(directory / "README") << "no module\n";
  fs::create_directory(directory / "more");
  fs::copy(directory / "libhvd_tiny.so", directory / "more" / "libhvd_tiny.so");
  fs::create_symlink(directory / "libhvd_away.so", directory / "more" / "libhvd_away.so");
  put("strict", "strict");
  Options all = options();
  all.set("plugin_path", directory.string() + ":" + (directory / "more").string());
  all.set("segment_bytes", std::string("8192"));
  std::map<std::string, backend::Report> reports;
  for (backend::Report& report : survey(all)) {
    const fs::path path = report.description.path;
    if (path.empty()) {
      EXPECT_EQ(report.description.name, "self");
      EXPECT_TRUE(report.status.ok());
    } else if (fs::relative(path, fs::canonical(directory)).native().rfind("..", 0) != 0) {
      const std::string key = fs::relative(path, fs::canonical(directory));
      EXPECT_TRUE(reports.emplace(key, std::move(report)).second) << key << " twice";
    }
  }
  ASSERT_EQ(reports.size(), 6U);
  const backend::Report& tiny = reports["libhvd_tiny.so"];
  EXPECT_TRUE(tiny.status.ok());
  EXPECT_EQ(tiny.description.name, "tiny");
  EXPECT_EQ(tiny.description.version, "1");
  EXPECT_EQ(tiny.max_instances, 2);
  EXPECT_EQ(tiny.abi_version, uint32_t{HVD_BACKEND_ABI_VERSION});
  EXPECT_TRUE(has(reports["libhvd_old.so"].status.message, "another version"));
  EXPECT_EQ(reports["libhvd_old.so"].abi_version, 0U);
  EXPECT_EQ(reports["libhvd_old.so"].description.name, "old");
  EXPECT_TRUE(has(reports["libhvd_away.so"].status.message, "on holiday"));
  EXPECT_FALSE(reports["libhvd_text.so"].status.ok());
  EXPECT_TRUE(has(reports["libhvd_strict.so"].status.message, "8192")) << "it gets its options, as in a job";
  EXPECT_TRUE(has(reports["more/libhvd_tiny.so"].status.message, "libhvd_tiny.so comes before it"));
}

}  // namespace
}  // namespace hvd::selection::test
