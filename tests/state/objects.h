// An object as a program would register it, with switches for what can go wrong.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "state/state.h"
#include "state/variable.h"

namespace hvd::state {

inline collective::Tensor tensor_of(std::vector<float>& values) {
  return {values.data(), HVD_DTYPE_FLOAT32, {static_cast<int64_t>(values.size())}};
}

struct TestObject {
  std::vector<uint8_t> bytes;
  int32_t save_code = 0, load_code = 0;
  bool throw_in_save = false, throw_int = false, write_null = false, lend_null = false;
  size_t lends = 0;  // not 0: it lends its bytes in pieces of this size, from memory that is freed by end()
  Lent how = Lent::kForCall;
  int saves = 0, loads = 0;
  std::function<void()> during;

  Callback<hvd_save_fn> save() { return {&TestObject::on_save, this, nullptr}; }
  Callback<hvd_load_fn> load() { return {&TestObject::on_load, this, nullptr}; }
  void add_to(State& state, const std::string& key) { state.add_object(key, save(), load()); }

  static int32_t on_save(void* self, hvd_write_fn write, void* sink) {
    auto& object = *static_cast<TestObject*>(self);
    ++object.saves;
    if (object.during) object.during();
    if (object.lends > 0) return object.lend_all(write, sink);
    const size_t half = object.bytes.size() / 2;  // in two parts, the first may be empty
    write(sink, object.bytes.data(), half);
    if (object.throw_in_save) throw std::runtime_error("no pickle today");
    if (object.throw_int) throw 5;
    if (object.write_null) write(sink, nullptr, 3);
    write(sink, object.bytes.data() + half, object.bytes.size() - half);
    return object.save_code;
  }
  // The first 10 bytes are written, then pieces are lent, every third alone and the others together; the last
  // 10 are written again.
  int32_t lend_all(hvd_write_fn write, void* sink) {
    end();
    const size_t edge = std::min<size_t>(10, bytes.size() / 2);
    write(sink, bytes.data(), edge);
    std::vector<const void*> data;
    std::vector<size_t> sizes;
    const auto give = [&] {
      const int32_t refused = state::lend(sink, data.data(), sizes.data(), data.size(), how);
      data.clear();
      sizes.clear();
      return refused;
    };
    for (size_t at = edge; at < bytes.size() - edge; at += lends) {
      const size_t size = std::min(lends, bytes.size() - edge - at);
      lent.emplace_back(std::make_unique<uint8_t[]>(size));
      std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(at), size, lent.back().get());
      data.push_back(lent.back().get());
      sizes.push_back(size);
      if (lent.size() % 3 == 0 && give() != 0) return 1;
    }
    if (give() != 0) return 1;
    if (lend_null) {
      data.push_back(nullptr);
      sizes.push_back(3);
      give();
    }
    write(sink, bytes.data() + bytes.size() - edge, edge);
    return save_code;
  }
  /// What was lent is gone: the call that wanted it has returned.
  void end() { lent.clear(); }
  std::vector<std::unique_ptr<uint8_t[]>> lent;

  static int32_t on_load(void* self, const void* data, size_t size) {
    auto& object = *static_cast<TestObject*>(self);
    ++object.loads;
    if (object.during) object.during();
    if (object.load_code != 0) return object.load_code;
    const auto* p = static_cast<const uint8_t*>(data);
    object.bytes.assign(p, p + size);
    return 0;
  }
};

}  // namespace hvd::state
