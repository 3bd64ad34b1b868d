// A model on its way through a text: the same states in memory and in files, for any batch, and from any block on that
// an earlier run had finished.
#include "model/model_run.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "io/scratch_folder.h"
#include "model/text_job.h"
#include "tests/support/network_fixture.h"
#include "tests/support/refusals.h"
#include "tests/support/scratch.h"

namespace kvant::tests {
namespace {

const model::TokenText kText = {.ids = {3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 32, 3, 8, 46, 26, 4, 3, 38, 32, 60, 0, 11},
                                .lengths = {13, 1, 9}};

class ModelRunTest : public testing::Test {
 protected:
  void SetUp() override {
    io::Json config = llama_config();
    config["num_hidden_layers"] = 2;
    llama_model(config).files().write(scratch_ / "model");
  }

  Result<model::ModelRun> open(const model::TokenText& text = kText) {
    return model::ModelRun::open(Stream::cpu(1), scratch_ / "model", text);
  }

  io::ScratchFolder folder(bool keep) {
    auto opened = io::ScratchFolder::open(scratch_ / "saved", keep);
    if (!opened.ok()) throw std::runtime_error(std::string(opened.status().message()));
    return std::move(opened).value();
  }

  // Counts blocks and stops a run in the middle of one.
  class Stop : public model::InputObserver {
   public:
    explicit Stop(int calls) : calls_(calls) {}
    Status see(const model::LinearModule&, const float*, std::int64_t, std::int64_t) override {
      return --calls_ < 0 ? Status(StatusCode::Internal, "stopped") : Status();
    }

   private:
    int calls_;
  };

  std::vector<float> final_states(model::ModelRun& run) {
    const auto rows = run.final_rows(0, kText.rows());
    EXPECT_TRUE(rows.ok()) << rows.status().message();
    return {*rows, *rows + kText.rows() * run.network().hidden};
  }

  std::vector<float> run_all(const model::RunMemory& memory, const io::ScratchFolder* folder, bool resume,
                             std::size_t* blocks_before = nullptr) {
    auto run = open();
    EXPECT_TRUE(run.ok()) << run.status().message();
    EXPECT_TRUE(run->start(memory, folder, "states", "test", resume).ok());
    if (blocks_before != nullptr) *blocks_before = run->blocks_done();
    base::Silence silence;
    const Status done = run->run_blocks(silence);
    EXPECT_TRUE(done.ok()) << done.message();
    return final_states(*run);
  }

  const ScratchFolder scratch_;
};

TEST_F(ModelRunTest, TheSameStatesWhereverTheyAreKept) {
  const std::vector<float> expected = run_all({.batch_rows = 64, .states_in_memory = true}, nullptr, false);
  for (const std::int64_t rows : {13, 14, 64})
    for (const bool in_memory : {true, false}) {
      const io::ScratchFolder saved = folder(false);
      EXPECT_EQ(run_all({.batch_rows = rows, .states_in_memory = in_memory}, &saved, false), expected) << rows;
    }
}

TEST_F(ModelRunTest, GoesOnAfterTheLastFinishedBlock) {
  const std::vector<float> expected = run_all({.batch_rows = 64, .states_in_memory = true}, nullptr, false);
  // 7 linears in a block; with two batches each is seen twice.
  constexpr int kBatches = 2, kCallsOfABlock = 7 * kBatches;
  for (int calls = 0; calls < 2 * kCallsOfABlock; ++calls)
    for (const bool in_memory : {true, false}) {
      const model::RunMemory memory{.batch_rows = 14, .states_in_memory = in_memory};
      {
        const io::ScratchFolder saved = folder(false);
        auto run = open();
        ASSERT_TRUE(run.ok());
        ASSERT_TRUE(run->start(memory, &saved, "states", "test", false).ok());
        base::Silence silence;
        Stop stop(calls);
        ASSERT_EQ(run->run_blocks(silence, &stop).message(), "stopped");
      }
      const io::ScratchFolder saved = folder(true);
      std::size_t before = 0;
      // What one run kept in memory, another may keep in files.
      EXPECT_EQ(run_all({.batch_rows = 64, .states_in_memory = !in_memory}, &saved, true, &before), expected);
      EXPECT_EQ(before, static_cast<std::size_t>(calls / kCallsOfABlock));
    }
}

TEST_F(ModelRunTest, TakesOnlySoundStatesOfTheSameRun) {
  const model::RunMemory memory{.batch_rows = 64, .states_in_memory = true};
  const std::vector<float> expected = run_all(memory, nullptr, false);
  const auto done_after = [&](const auto& change) {
    {
      const io::ScratchFolder saved = folder(false);
      run_all(memory, &saved, false);
    }
    change();
    const io::ScratchFolder saved = folder(true);
    std::size_t before = 0;
    EXPECT_EQ(run_all(memory, &saved, true, &before), expected);
    return before;
  };
  // Embeddings in a, the first block in b, the second in a.
  const fs::path a = scratch_ / "saved/states-a.scratch", b = scratch_ / "saved/states-b.scratch";
  const auto damage = [](const fs::path& path, std::uint64_t at) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(at));
    file.put('\x5a');
  };
  const std::uint64_t states = kText.ids.size() * NetworkFixture::kHidden * 4;
  EXPECT_EQ(done_after([] {}), 2u);
  EXPECT_EQ(done_after([&] { damage(a, 100); }), 1u);
  EXPECT_EQ(done_after([&] { damage(a, states + 20); }), 1u);
  EXPECT_EQ(done_after([&] { fs::resize_file(a, states); }), 1u);
  EXPECT_EQ(done_after([&] { fs::resize_file(a, 0); }), 1u);
  EXPECT_EQ(done_after([&] { fs::remove(a); }), 1u);
  EXPECT_EQ(done_after([&] { damage(a, 0), damage(b, 0); }), 0u);
  // A checkpoint that is not the same any more, though all its values are.
  EXPECT_EQ(done_after([&] {
              for (const auto& entry : fs::directory_iterator(scratch_ / "model"))
                if (entry.path().extension() == ".safetensors")
                  fs::last_write_time(entry.path(), fs::last_write_time(entry.path()) + std::chrono::seconds(1));
            }),
            0u);
}

TEST_F(ModelRunTest, StatesOfAnotherTextAreNotTaken) {
  {
    const io::ScratchFolder saved = folder(false);
    run_all({.batch_rows = 64, .states_in_memory = true}, &saved, false);
  }
  model::TokenText other = kText;
  other.ids[0] = 4;
  auto run = open(other);
  ASSERT_TRUE(run.ok());
  const io::ScratchFolder saved = folder(true);
  ASSERT_TRUE(run->start({.batch_rows = 64, .states_in_memory = true}, &saved, "states", "test", true).ok());
  EXPECT_EQ(run->blocks_done(), 0u);
}

TEST_F(ModelRunTest, MemoryIsPlannedAndALimitThatIsTooSmallRefused) {
  std::vector<model::ModelRun> runs;
  runs.push_back(std::move(open()).value());
  const Stream stream = Stream::cpu(1);
  EXPECT_TRUE(refused(model::TextJob::begin(stream, runs, kText, {.run = {.max_memory = 1 << 20}}).status(),
                      StatusCode::InvalidProblem, {"a sequence of 13 tokens", "--max-memory allows 1M"}));
  // The end needs more than is left beside states in memory.
  const std::uint64_t much = std::uint64_t{1} << 30;
  const auto without = model::TextJob::begin(stream, runs, kText, {.run = {.max_memory = much}});
  ASSERT_TRUE(without.ok()) << without.status().message();
  EXPECT_EQ(without->folder(), nullptr);
  const std::uint64_t left = without->memory_at_the_end();
  EXPECT_LT(left, much);
  EXPECT_TRUE(refused(
      model::TextJob::begin(stream, runs, kText, {.run = {.max_memory = much}, .at_the_end = left + 1}).status(),
      StatusCode::InvalidProblem,
      {"the states of 23 tokens need 1M of memory; name a folder for them with --scratch"}));
}

}  // namespace
}  // namespace kvant::tests
