// Finding the libraries: what is absent, too old or without a device is said in one clear sentence.
#include <dlfcn.h>

#include <filesystem>
#include <fstream>

#include "modules/nccl/cluster.h"

namespace hvd::backend::test {
namespace {

namespace fs = std::filesystem;

Status open_with(const ModuleOptions& options) {
  Store store;
  Inbox inbox;
  std::unique_ptr<Instance> instance;
  return open_nccl(inbox, store, options, &instance);
}

void expect_sentence(const Status& status, const std::string& part) {
  EXPECT_EQ(status.code, HVD_UNAVAILABLE) << status.message;
  EXPECT_NE(status.message.find(part), std::string::npos) << status.message;
  EXPECT_EQ(status.message.find('\n'), std::string::npos) << status.message;
  EXPECT_LT(status.message.size(), 500U);
}

TEST(NcclLibrary, InitTouchesNothing) {
  std::shared_ptr<Module> module;
  hvddouble::reset();
  const Status status = load_module(HVD_NCCL_MODULE, &module);
  ASSERT_TRUE(status.ok()) << status.message;
  EXPECT_EQ(hvddouble::call_count(), 0);
  EXPECT_EQ(module->description.memories, uint64_t{1} << HVD_MEMORY_CUDA);
  EXPECT_FALSE(module->description.messages);
}

TEST(NcclLibrary, AnAbsentDriver) {
  if (void* handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
    dlclose(handle);
    GTEST_SKIP() << "this machine has a CUDA driver";
  }
  expect_sentence(open_with({}), "no CUDA driver on this machine");
  expect_sentence(open_with({{"nccl_library", HVD_NCCL_DOUBLE}}), "no CUDA driver on this machine");
}

TEST(NcclLibrary, PathsThatLeadNowhere) {
  expect_sentence(open_with({{"nccl_library", "/nowhere/libnccl.so.2"}, {"cuda_library", HVD_CUDA_DOUBLE}}),
                  "NCCL can't be loaded from option nccl_library: /nowhere/libnccl.so.2");
  expect_sentence(open_with({{"cuda_library", "/nowhere/libcuda.so.1"}}),
                  "the CUDA driver can't be loaded from option cuda_library: /nowhere/libcuda.so.1");
}

TEST(NcclLibrary, SomethingElseInItsPlace) {
  expect_sentence(open_with({{"cuda_library", "libm.so.6"}}), "the CUDA driver has no cuInit");
  expect_sentence(open_with({{"cuda_library", HVD_CUDA_DOUBLE}, {"nccl_library", "libm.so.6"}}),
                  "NCCL has no ncclGetVersion");
}

// One of its own, since what is loaded from a path stays loaded.
TEST(NcclLibrary, TooOld) {
  const fs::path copy = fs::temp_directory_path() / ("libnccl_old_" + std::to_string(getpid()) + ".so");
  fs::create_symlink(HVD_NCCL_DOUBLE, copy);
  hvddouble::set_nccl_version(21400);
  expect_sentence(open_with({{"nccl_library", copy}, {"cuda_library", HVD_CUDA_DOUBLE}}), "NCCL 2.14.0 of ");
  hvddouble::set_nccl_version(2708);
  expect_sentence(open_with({{"nccl_library", copy}, {"cuda_library", HVD_CUDA_DOUBLE}}),
                  "is too old: expected 2.18.0 or later");
  hvddouble::set_nccl_version(22809);
  fs::remove(copy);
}

// A directory as the wheels make it, of an active virtual environment.
TEST(NcclLibrary, IsFoundWhereWheelsPutIt) {
  if (void* handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL)) {
    dlclose(handle);
    GTEST_SKIP() << "this machine has NCCL in the loader's path";
  }
  const fs::path venv = fs::temp_directory_path() / ("hvd_venv_" + std::to_string(getpid()));
  const fs::path lib = venv / "lib/python3.99/site-packages/nvidia/nccl/lib";
  fs::create_directories(lib);
  fs::copy_file(HVD_NCCL_DOUBLE, lib / "libnccl.so.2");
  setenv("VIRTUAL_ENV", venv.c_str(), 1);
  Store store;
  Inbox inbox;
  std::unique_ptr<Instance> instance;
  const Status status = open_nccl(inbox, store, {{"cuda_library", HVD_CUDA_DOUBLE}}, &instance);
  unsetenv("VIRTUAL_ENV");
  ASSERT_TRUE(status.ok()) << status.message;
  EXPECT_NE(instance->detail().find((lib / "libnccl.so.2").string()), std::string::npos)
      << instance->detail();
  fs::remove_all(venv);
}

TEST(NcclLibrary, NoDevice) {
  Store store;
  Inbox inbox;
  std::unique_ptr<Instance> instance;
  // Loaded from here alone, so that CUDA has not been started yet.
  const fs::path copy = fs::temp_directory_path() / ("libnccl_nodev_" + std::to_string(getpid()) + ".so");
  fs::create_symlink(HVD_NCCL_DOUBLE, copy);
  const Status opened =
      open_nccl(inbox, store, {{"nccl_library", copy}, {"cuda_library", HVD_CUDA_DOUBLE}}, &instance);
  ASSERT_TRUE(opened.ok()) << opened.message;
  fs::remove(copy);
  hvddouble::reset();
  hvddouble::set_device_count(0);
  void* memory = nullptr;
  expect_sentence(instance->host_alloc(HVD_MEMORY_CUDA, 1, &memory),
                  "no CUDA device can be used: cuInit gave CUDA_ERROR_NO_DEVICE");
  hvddouble::set_device_count(2);
  instance.reset();
}

// The real library, without a driver's device under it: its version, and its own sentence when it is used.
TEST(NcclLibrary, TheRealOneTellsItsVersion) {
  const char* const given = std::getenv("HVD_NCCL_LIBRARY");
  std::string path = given != nullptr ? given : "";
#ifdef HVD_TEST_NCCL_LIBRARY
  if (path.empty()) path = HVD_TEST_NCCL_LIBRARY;
#endif
  if (path.empty()) path = "libnccl.so.2";
  void* const real = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (real == nullptr) GTEST_SKIP() << "no NCCL: HVD_NCCL_LIBRARY names none, and the loader finds none";
  int version = 0;
  ASSERT_EQ(reinterpret_cast<int (*)(int*)>(dlsym(real, "ncclGetVersion"))(&version), 0);
  Store store;
  Inbox inbox;
  std::unique_ptr<Instance> instance;
  const Status status =
      open_nccl(inbox, store, {{"nccl_library", path}, {"cuda_library", HVD_CUDA_DOUBLE}}, &instance);
  ASSERT_TRUE(status.ok()) << status.message;
  const std::string text = std::to_string(version / 10000) + "." + std::to_string(version % 10000 / 100) +
                           "." + std::to_string(version % 100);
  EXPECT_EQ(instance->detail().find("NCCL " + text + " of "), 0U) << instance->detail();
  // A group of two, the other of which never comes: the real library has no device and says so.
  std::vector<Offer> offers;
  ASSERT_TRUE(instance->offers(&offers).ok());
  ASSERT_TRUE(instance->connect(1, 0, {{1, "a", offers}, {2, "b", offers}}, kSoon).ok());
  Pending pending;
  hvd_backend_op op = pending.op(HVD_COLLECTIVE_BARRIER, 1);
  op.memory = HVD_MEMORY_CUDA;
  const Status refused = run(*instance, op, pending);
  EXPECT_EQ(refused.code, HVD_INTERNAL);
  EXPECT_NE(refused.message.find("the communicator of 2 ranks: "), std::string::npos) << refused.message;
  EXPECT_EQ(refused.message.find('\n'), std::string::npos) << refused.message;
  RecordProperty("message", refused.message);
  instance->abort(1);
}

}  // namespace
}  // namespace hvd::backend::test
