// The loader: what it finds, what it refuses, and what it says then.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "modules/cluster.h"
#include "selection/selection.h"

namespace hvd::backend::test {
namespace {

namespace fs = std::filesystem;

Options with_path(const std::string& path) {
  Options options([](const std::string&) { return std::nullopt; });
  options.set("plugin_path", path);
  options.set("local", std::string("off"));  // the module alone
  return options;
}

Status try_open(const std::string& name, const std::string& path = HVD_TEST_MODULES,
                const std::vector<std::pair<std::string, std::string>>& module_options = {}) {
  std::unique_ptr<Instance> instance;
  Status status = selection::open(with_path(path), name, module_options, {}, &instance);
  EXPECT_EQ(instance != nullptr, status.ok());
  return status;
}

void expect_reason(const Status& status, const std::string& file, const std::string& reason) {
  EXPECT_EQ(status.code, HVD_UNAVAILABLE);
  const size_t at = status.message.find(std::string(HVD_TEST_MODULES) + "/" + file);
  ASSERT_NE(at, std::string::npos) << status.message;
  EXPECT_NE(status.message.find(reason, at), std::string::npos) << status.message;
}

// A directory of its own that goes with the test.
struct Directory {
  Directory() {
    std::string pattern = (fs::temp_directory_path() / "hvd-loader-XXXXXX").string();
    path = mkdtemp(pattern.data());
  }
  ~Directory() { fs::remove_all(path); }
  fs::path path;
};

TEST(Loader, OpensAModuleMadeWithTheHeaderAlone) {
  std::map<std::string, std::vector<uint8_t>> store;
  std::vector<std::string> said;
  HostHandlers handlers;
  handlers.message = [&](uint64_t generation, int32_t source, std::span<const uint8_t> data) {
    said.push_back("message " + std::to_string(generation) + " " + std::to_string(source) + " " +
                   std::string(data.begin(), data.end()));
  };
  handlers.failure = [&](uint64_t, int32_t peer, const std::string& text) {
    said.push_back("failure " + std::to_string(peer) + " " + text);
    throw std::runtime_error("a handler that throws");  // must not cross into the module
  };
  handlers.kv_set = [&](uint64_t, const std::string& key, std::span<const uint8_t> value) {
    EXPECT_EQ(key, "tiny/key");  // its own, whatever other backends there are
    store[key] = {value.begin(), value.end()};
    return Status();
  };
  handlers.kv_get = [&](uint64_t, const std::string& key, Duration timeout, std::vector<uint8_t>* value) {
    EXPECT_EQ(timeout, milliseconds(100));
    *value = store[key];
    return Status();
  };
  std::unique_ptr<Instance> instance;
  const Status status = selection::open(with_path(HVD_TEST_MODULES), "tiny", {}, handlers, &instance);
  ASSERT_TRUE(status.ok()) << status.message;
  EXPECT_EQ(instance->description().name, "tiny");
  EXPECT_EQ(instance->description().path, fs::canonical(HVD_TEST_MODULES) / "libhvd_tiny.so");
  EXPECT_EQ(instance->detail(), "tiny");

  std::vector<Offer> offers;
  ASSERT_TRUE(instance->offers(&offers).ok());
  EXPECT_EQ(offers[0].backend, "tiny");
  EXPECT_EQ(offers[0].address, std::vector<uint8_t>(5000, 7));  // asked twice: the first room was too small
  ASSERT_TRUE(instance->connect(3, 0, {{1, "here", offers}}, seconds(1)).ok());
  EXPECT_EQ(said, (std::vector<std::string>{"message 3 0 hello", "failure -1 just to say"}));

  Pending pending;
  EXPECT_TRUE(run(*instance, pending.op(HVD_COLLECTIVE_BARRIER, 1), pending).ok());
  const Status refused = instance->send_message(1, {});
  EXPECT_EQ(refused.code, HVD_INVALID);
  EXPECT_EQ(refused.message, "there is nobody else");
  EXPECT_EQ(refused.backend, "tiny");
  instance->abort(3);
  Pending late;
  EXPECT_EQ(instance->submit(late.op(HVD_COLLECTIVE_BARRIER, 2)).code, HVD_PEER_LOST);
}

TEST(Loader, SaysWhyEachPathFailed) {
  expect_reason(try_open("missing"), "libhvd_missing.so", "No such file");
  expect_reason(try_open("old"), "libhvd_old.so", "another version");
  expect_reason(try_open("holey"), "libhvd_holey.so", "'abort' is missing");
  expect_reason(try_open("mute"), "libhvd_mute.so", "sends no messages");
  expect_reason(try_open("short"), "libhvd_short.so", "struct_size 64");
  expect_reason(try_open("nameless"), "libhvd_nameless.so", "no name");
  expect_reason(try_open("empty"), "libhvd_empty.so", "hvd_backend_init");
  expect_reason(try_open("away"), "libhvd_away.so", "on holiday");
  expect_reason(try_open("tiny", HVD_TEST_MODULES, {{"refuse", "not today"}}), "libhvd_tiny.so", "not today");
}

TEST(Loader, ListsEveryDirectory) {
  const Status status = try_open("missing", "/no/such/place:" HVD_TEST_MODULES);
  for (const char* path : {"/hvd/1/libhvd_missing.so", "/no/such/place/libhvd_missing.so",
                           HVD_TEST_MODULES "/libhvd_missing.so"}) {
    EXPECT_NE(status.message.find(path), std::string::npos) << path << " in " << status.message;
  }
}

TEST(Loader, RefusesAFileThatIsNoModule) {
  const Directory directory;
  std::ofstream(directory.path / "libhvd_text.so") << "I am not a shared object\n";
  const Status status = try_open("text", directory.path);
  EXPECT_EQ(status.code, HVD_UNAVAILABLE);
  EXPECT_NE(status.message.find("libhvd_text.so: "), std::string::npos) << status.message;
}

TEST(Loader, ANameIsNotAPath) {
  for (const char* name : {"", "../gloo", "a/b", "x y"}) EXPECT_EQ(try_open(name).code, HVD_INVALID) << name;
}

TEST(Loader, AutoTakesWhatLoads) {
  const Directory directory;
  fs::copy(HVD_TEST_MODULES "/libhvd_away.so", directory.path / "libhvd_a.so");
  fs::copy(HVD_TEST_MODULES "/libhvd_tiny.so", directory.path / "libhvd_b.so");
  std::unique_ptr<Instance> instance;
  Status status = selection::open(with_path(directory.path), "auto", {}, {}, &instance);
  ASSERT_TRUE(status.ok()) << status.message;
  // Gloo comes first, where it is found beside the program; else the one of the two that serves.
  EXPECT_TRUE(instance->description().name == "gloo" || instance->description().name == "tiny");

  fs::remove(directory.path / "libhvd_b.so");
  instance.reset();
  status = selection::open(with_path(directory.path), "auto", {}, {}, &instance);
  if (!status.ok()) {
    EXPECT_EQ(status.code, HVD_UNAVAILABLE);
    EXPECT_NE(status.message.find("libhvd_gloo.so: "), std::string::npos) << status.message;
    EXPECT_NE(status.message.find("libhvd_a.so: the device is on holiday"), std::string::npos)
        << status.message;
  }
}

// The tiny module is not fast inside a host by itself.
TEST(Loader, OptionLocalPutsSharedMemoryAroundTheModule) {
  for (const auto& [option, shares] :
       std::map<std::string, bool>{{"auto", true}, {"on", true}, {"off", false}}) {
    Options options = with_path(HVD_TEST_MODULES);
    options.set("local", option);
    std::unique_ptr<Instance> instance;
    ASSERT_TRUE(selection::open(options, "tiny", {}, {}, &instance).ok()) << option;
    EXPECT_EQ(instance->description().name, "tiny");
    EXPECT_EQ(instance->description().local, shares) << option;
  }
  Options options = with_path(HVD_TEST_MODULES);
  options.set("local", std::string("maybe"));
  std::unique_ptr<Instance> instance;
  const Status status = selection::open(options, "tiny", {}, {}, &instance);
  EXPECT_EQ(status.code, HVD_INVALID);
  EXPECT_NE(status.message.find("auto, on, messages or off"), std::string::npos) << status.message;
}

TEST(Loader, KeepsToTheModulesLimitOfInstances) {
  std::unique_ptr<Instance> a, b, c;
  const Options options = with_path(HVD_TEST_MODULES);
  ASSERT_TRUE(selection::open(options, "tiny", {}, {}, &a).ok());
  ASSERT_TRUE(selection::open(options, "tiny", {}, {}, &b).ok());
  const Status status = selection::open(options, "tiny", {}, {}, &c);
  expect_reason(status, "libhvd_tiny.so", "allows 2");
  b.reset();
  EXPECT_TRUE(selection::open(options, "tiny", {}, {}, &c).ok());
}

}  // namespace
}  // namespace hvd::backend::test
