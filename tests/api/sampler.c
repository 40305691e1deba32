/* The sampler in a worker that is alone, and bad input to each of its functions. */
#include "hvd/sampler.h"

#include <stdlib.h>

#include "check.h"

static hvd_error error;

static hvd_sampler_options options_of(uint64_t samples, uint64_t batch_size) {
  hvd_sampler_options o;
  memset(&o, 0, sizeof(o));
  o.struct_size = sizeof(o);
  o.samples = samples;
  o.batch_size = batch_size;
  return o;
}

static hvd_sampler_batch new_batch(void) {
  hvd_sampler_batch b;
  memset(&b, 0, sizeof(b));
  b.struct_size = sizeof(b);
  return b;
}

static uint64_t processed(hvd_sampler *sampler) {
  hvd_sampler_info info;
  memset(&info, 0, sizeof(info));
  info.struct_size = sizeof(info);
  CHECK_STATUS(hvd_sampler_get_info(sampler, &info, &error), HVD_OK);
  CHECK(info.processed + info.remaining == info.samples);
  CHECK(info.rounds == (info.remaining + info.batch_size - 1) / info.batch_size);
  return info.processed;
}

static void bad_input(hvd_context *c) {
  hvd_sampler_options o = options_of(10, 4);
  hvd_sampler_batch batch = new_batch();
  hvd_sampler_batch other = new_batch();
  hvd_sampler_info info;
  hvd_sampler *s = NULL;
  hvd_sampler *kept = NULL;
  hvd_state *state = NULL;
  uint64_t indices[4] = {99, 99, 99, 99};
  unsigned char bytes[HVD_SAMPLER_SAVED_BYTES + 1];
  memset(&info, 0, sizeof(info));

  CHECK_STATUS(hvd_sampler_create(NULL, &o, &s, &error), HVD_INVALID);
  CHECK_NAMES("context");
  CHECK_STATUS(hvd_sampler_create(c, NULL, &s, &error), HVD_INVALID);
  CHECK_NAMES("options");
  CHECK_STATUS(hvd_sampler_create(c, &o, NULL, &error), HVD_INVALID);
  CHECK_NAMES("ret_sampler");
  o.struct_size = 0;
  CHECK_STATUS(hvd_sampler_create(c, &o, &s, &error), HVD_INVALID);
  CHECK_NAMES("struct_size");
  o = options_of(0, 4);
  CHECK_STATUS(hvd_sampler_create(c, &o, &s, &error), HVD_INVALID);
  CHECK_NAMES("0 samples");
  o = options_of((uint64_t)-1, 4);
  CHECK_STATUS(hvd_sampler_create(c, &o, &s, &error), HVD_INVALID);
  CHECK_NAMES("18446744073709551615");
  o = options_of(10, 0);
  CHECK_STATUS(hvd_sampler_create(c, &o, &s, &error), HVD_INVALID);
  CHECK_NAMES("batch_size");
  o = options_of(10, 4);
  o.in_order = 2;
  CHECK_STATUS(hvd_sampler_create(c, &o, &s, &error), HVD_INVALID);
  CHECK_NAMES("in_order is 2");
  o.in_order = 0;
  o.padding = 9;
  CHECK_STATUS(hvd_sampler_create(c, &o, &s, &error), HVD_INVALID);
  CHECK_NAMES("padding is 9");
  CHECK(s == NULL);
  hvd_sampler_destroy(NULL);

  o.padding = HVD_PADDING_NONE;
  CHECK_STATUS(hvd_sampler_create(c, &o, &s, &error), HVD_OK);
  kept = s;
  CHECK_STATUS(hvd_sampler_next(NULL, NULL, indices, 4, &batch, &error), HVD_INVALID);
  CHECK_STATUS(hvd_sampler_next(s, NULL, NULL, 4, &batch, &error), HVD_INVALID);
  CHECK_NAMES("indices");
  CHECK_STATUS(hvd_sampler_next(s, NULL, indices, 4, NULL, &error), HVD_INVALID);
  CHECK_NAMES("ret_batch");
  CHECK_STATUS(hvd_sampler_next(s, NULL, indices, 3, &batch, &error), HVD_INVALID);
  CHECK_NAMES("room for 3 indices: expected 4");
  CHECK_STATUS(hvd_sampler_next(s, NULL, NULL, 0, &batch, &error), HVD_INVALID);
  batch.struct_size = 0;
  CHECK_STATUS(hvd_sampler_next(s, NULL, indices, 4, &batch, &error), HVD_INVALID);
  CHECK_NAMES("struct_size");
  batch = new_batch();
  other.struct_size = 3;
  CHECK_STATUS(hvd_sampler_next(s, &other, indices, 4, &batch, &error), HVD_INVALID);
  CHECK_NAMES("after");
  other = new_batch();
  other.generation = 12;
  CHECK_STATUS(hvd_sampler_next(s, &other, indices, 4, &batch, &error), HVD_INVALID);
  CHECK_NAMES("stale");
  CHECK(indices[0] == 99 && batch.total == 0); /* results are untouched on failure */
  CHECK_STATUS(hvd_sampler_record(NULL, &batch, &error), HVD_INVALID);
  CHECK_STATUS(hvd_sampler_record(s, NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_sampler_record(s, &other, &error), HVD_INVALID);
  CHECK_NAMES("dealt in generation 12");
  CHECK_STATUS(hvd_sampler_set_epoch(NULL, 1, &error), HVD_INVALID);
  CHECK_STATUS(hvd_sampler_get_info(NULL, &info, &error), HVD_INVALID);
  CHECK_STATUS(hvd_sampler_get_info(s, NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_sampler_get_info(s, &info, &error), HVD_INVALID);
  CHECK_NAMES("struct_size");
  CHECK_STATUS(hvd_sampler_save(NULL, bytes, sizeof(bytes), &error), HVD_INVALID);
  CHECK_STATUS(hvd_sampler_save(s, NULL, sizeof(bytes), &error), HVD_INVALID);
  CHECK_STATUS(hvd_sampler_save(s, bytes, HVD_SAMPLER_SAVED_BYTES - 1, &error), HVD_INVALID);
  CHECK_NAMES("63");
  CHECK_STATUS(hvd_sampler_save(s, bytes, sizeof(bytes), &error), HVD_OK);
  CHECK_STATUS(hvd_sampler_load(NULL, bytes, HVD_SAMPLER_SAVED_BYTES, &error), HVD_INVALID);
  CHECK_STATUS(hvd_sampler_load(s, NULL, HVD_SAMPLER_SAVED_BYTES, &error), HVD_INVALID);
  CHECK_STATUS(hvd_sampler_load(s, bytes, 0, &error), HVD_INVALID);
  CHECK_STATUS(hvd_sampler_load(s, bytes, sizeof(bytes), &error), HVD_INVALID);
  bytes[0] ^= 1;
  CHECK_STATUS(hvd_sampler_load(s, bytes, HVD_SAMPLER_SAVED_BYTES, &error), HVD_INVALID);
  CHECK(processed(s) == 0);

  CHECK_STATUS(hvd_state_create(c, &state, &error), HVD_OK);
  CHECK_STATUS(hvd_state_add_sampler(NULL, "sampler", s, &error), HVD_INVALID);
  CHECK_STATUS(hvd_state_add_sampler(state, NULL, s, &error), HVD_INVALID);
  CHECK_STATUS(hvd_state_add_sampler(state, "", s, &error), HVD_INVALID);
  CHECK_STATUS(hvd_state_add_sampler(state, "sampler", NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_state_add_sampler(state, "sampler", s, &error), HVD_OK);
  CHECK_STATUS(hvd_state_add_sampler(state, "sampler", s, &error), HVD_INVALID);
  CHECK_NAMES("sampler of 10 samples in batches of 4");
  /* The state keeps what it needs. */
  hvd_sampler_destroy(kept);
  CHECK_STATUS(hvd_state_save(state, &error), HVD_OK);
  CHECK_STATUS(hvd_state_restore(state, &error), HVD_OK);
  hvd_state_destroy(state);
}

/* Structs of an older, shorter layout are read and written no further than their size. */
static void short_structs(hvd_context *c) {
  hvd_sampler_options o = options_of(10, 4);
  hvd_sampler_batch batch;
  hvd_sampler *s = NULL;
  uint64_t indices[4];
  o.seed = 77;
  o.in_order = 5;
  o.struct_size = offsetof(hvd_sampler_options, in_order);
  CHECK_STATUS(hvd_sampler_create(c, &o, &s, &error), HVD_OK);
  memset(&batch, 0x5a, sizeof(batch));
  batch.struct_size = offsetof(hvd_sampler_batch, total);
  CHECK_STATUS(hvd_sampler_next(s, NULL, indices, 4, &batch, &error), HVD_OK);
  CHECK(batch.count == 4 && batch.total == 0x5a5a5a5a5a5a5a5au);
  CHECK_STATUS(hvd_sampler_record(s, &batch, &error), HVD_OK);
  CHECK(processed(s) == 4);
  hvd_sampler_destroy(s);
}

/* An epoch with a commit, a restore and a look ahead. */
static void trains(hvd_context *c) {
  hvd_sampler_options o = options_of(10, 4);
  hvd_sampler_batch batch = new_batch();
  hvd_sampler_batch ahead = new_batch();
  hvd_sampler *s = NULL;
  hvd_state *state = NULL;
  uint64_t first[4];
  uint64_t second[4];
  uint64_t indices[4];
  unsigned char bytes[HVD_SAMPLER_SAVED_BYTES];
  unsigned char later[HVD_SAMPLER_SAVED_BYTES];
  int seen[10] = {0};
  size_t i;
  CHECK_STATUS(hvd_sampler_create(c, &o, &s, &error), HVD_OK);
  CHECK_STATUS(hvd_state_create(c, &state, &error), HVD_OK);
  CHECK_STATUS(hvd_state_add_sampler(state, "sampler", s, &error), HVD_OK);
  CHECK_STATUS(hvd_sampler_set_epoch(s, 3, &error), HVD_OK);

  CHECK_STATUS(hvd_sampler_next(s, NULL, first, 4, &batch, &error), HVD_OK);
  CHECK(batch.epoch == 3 && batch.count == 4 && batch.total == 4 && batch.position == 0 &&
        batch.generation == 0);
  CHECK_STATUS(hvd_sampler_next(s, &batch, second, 4, &ahead, &error), HVD_OK);
  CHECK_STATUS(hvd_sampler_record(s, &ahead, &error), HVD_INVALID);
  CHECK_STATUS(hvd_sampler_record(s, &batch, &error), HVD_OK);
  CHECK_STATUS(hvd_sampler_record(s, &batch, &error), HVD_INVALID);
  CHECK_STATUS(hvd_state_commit(state, &error), HVD_OK);
  CHECK_STATUS(hvd_sampler_save(s, bytes, sizeof(bytes), &error), HVD_OK);

  CHECK_STATUS(hvd_sampler_record(s, &ahead, &error), HVD_OK);
  CHECK(processed(s) == 8);
  CHECK_STATUS(hvd_sampler_set_epoch(s, 4, &error), HVD_OK);
  CHECK(processed(s) == 0);
  CHECK_STATUS(hvd_state_restore(state, &error), HVD_OK);
  CHECK(processed(s) == 4);
  CHECK_STATUS(hvd_sampler_save(s, later, sizeof(later), &error), HVD_OK);
  CHECK(memcmp(bytes, later, sizeof(bytes)) == 0);

  /* The batch after the commit comes again, and then what is left. */
  for (i = 0; i < 4; ++i) ++seen[first[i]];
  CHECK_STATUS(hvd_sampler_next(s, NULL, indices, 4, &batch, &error), HVD_OK);
  CHECK(memcmp(indices, second, sizeof(indices)) == 0);
  while (batch.total > 0 && failures == 0) {
    for (i = 0; i < batch.count; ++i) ++seen[indices[i]];
    CHECK_STATUS(hvd_sampler_record(s, &batch, &error), HVD_OK);
    CHECK_STATUS(hvd_sampler_next(s, NULL, indices, 4, &batch, &error), HVD_OK);
  }
  for (i = 0; i < 10; ++i) CHECK(seen[i] == 1);
  CHECK(processed(s) == 10);
  CHECK_STATUS(hvd_sampler_record(s, &batch, &error), HVD_OK); /* nothing: changes nothing */

  /* A checkpoint goes into another sampler, of another batch size. */
  {
    hvd_sampler *t = NULL;
    o.batch_size = 1;
    CHECK_STATUS(hvd_sampler_create(c, &o, &t, &error), HVD_OK);
    CHECK_STATUS(hvd_sampler_load(t, bytes, sizeof(bytes), &error), HVD_OK);
    CHECK_STATUS(hvd_sampler_next(t, NULL, indices, 4, &batch, &error), HVD_OK);
    CHECK(batch.epoch == 3 && batch.count == 1 && indices[0] == second[0]);
    hvd_sampler_destroy(t);
    o.seed = 1;
    CHECK_STATUS(hvd_sampler_create(c, &o, &t, &error), HVD_OK);
    CHECK_STATUS(hvd_sampler_load(t, bytes, sizeof(bytes), &error), HVD_INVALID);
    CHECK_NAMES("seed 1");
    hvd_sampler_destroy(t);
  }

  CHECK_STATUS(hvd_shutdown(c, HVD_SECOND, &error), HVD_OK);
  CHECK_STATUS(hvd_sampler_next(s, NULL, indices, 4, &batch, &error), HVD_CLOSED);
  CHECK_STATUS(hvd_sampler_record(s, &batch, &error), HVD_CLOSED);
  CHECK_STATUS(hvd_sampler_create(c, &o, &s, &error), HVD_CLOSED);
  CHECK_STATUS(hvd_sampler_save(s, later, sizeof(later), &error), HVD_OK);
  hvd_sampler_destroy(s);
  hvd_state_destroy(state);
}

int main(void) {
  hvd_context *c = NULL;
  CHECK_STATUS(hvd_init(NULL, &c, &error), HVD_OK);
  if (c != NULL) {
    bad_input(c);
    short_structs(c);
    trains(c);
  }
  hvd_destroy(c);
  return report("sampler");
}
