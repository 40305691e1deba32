// An object as a program would register it, with switches for what can go wrong.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "state/state.h"

namespace hvd::state {

struct TestObject {
  std::vector<uint8_t> bytes;
  int32_t save_code = 0, load_code = 0;
  bool throw_in_save = false, throw_int = false, write_null = false;
  int saves = 0, loads = 0;
  std::function<void()> during;

  Callback<hvd_save_fn> save() { return {&TestObject::on_save, this, nullptr}; }
  Callback<hvd_load_fn> load() { return {&TestObject::on_load, this, nullptr}; }
  void add_to(State& state, const std::string& key) { state.add_object(key, save(), load()); }

  static int32_t on_save(void* self, hvd_write_fn write, void* sink) {
    auto& object = *static_cast<TestObject*>(self);
    ++object.saves;
    if (object.during) object.during();
    const size_t half = object.bytes.size() / 2;  // in two parts, the first may be empty
    write(sink, object.bytes.data(), half);
    if (object.throw_in_save) throw std::runtime_error("no pickle today");
    if (object.throw_int) throw 5;
    if (object.write_null) write(sink, nullptr, 3);
    write(sink, object.bytes.data() + half, object.bytes.size() - half);
    return object.save_code;
  }
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
