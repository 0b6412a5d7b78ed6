#include "base/process.h"

#include <gtest/gtest.h>

#include <string>

namespace carat {
namespace {

TEST(Process, ReturnsStatusAndBothOutputs) {
  const ProcessResult result = run_process({"sh", "-c", "echo one; echo two >&2; exit 7"});
  EXPECT_TRUE(result.started);
  EXPECT_FALSE(result.ok());
  EXPECT_EQ(result.status, 7);
  EXPECT_EQ(result.output, "one\ntwo\n");
}

TEST(Process, PassesArgumentsUntouched) {
  const std::string strange = "a b;$(echo x)'\"\\*\n";
  EXPECT_EQ(run_process({"printf", "%s", strange}).output, strange);
}

TEST(Process, MissingProgramIsNotStarted) {
  const ProcessResult result = run_process({"carat-no-such-program"});
  EXPECT_FALSE(result.started);
  EXPECT_FALSE(result.ok());
}

TEST(Process, ReplacesAndAddsEnvironment) {
  const ProcessResult result = run_process({"sh", "-c", "echo $CARAT_TEST_A-$HOME-${PATH:+path}"},
                                           {{"CARAT_TEST_A", "added"}, {"HOME", "replaced"}});
  EXPECT_EQ(result.output, "added-replaced-path\n");
}

TEST(Process, StdinIsEmpty) {
  EXPECT_EQ(run_process({"cat"}).output, "");
}

TEST(Process, SignalBecomesStatus) {
  EXPECT_EQ(run_process({"sh", "-c", "kill -9 $$"}).status, 128 + 9);
}

TEST(Process, KeepsTheEndOfLongOutput) {
  const ProcessResult result = run_process({"sh", "-c", "yes 0123456789 | head -c 1000000; echo; echo the end"});
  EXPECT_LE(result.output.size(), 64u * 1024);
  EXPECT_EQ(result.last_line(), "the end");
}

TEST(Process, TicksWhileWaiting) {
  int ticks = 0;
  run_process({"sleep", "0.7"}, {}, [&] { ++ticks; });
  EXPECT_GE(ticks, 2);
}

TEST(Process, LastLinePrefersThePrefix) {
  ProcessResult result;
  result.output = "ERROR: first\nERROR: second  \r\nnote\n\n";
  EXPECT_EQ(result.last_line("ERROR:"), "second");
  EXPECT_EQ(result.last_line("WARNING:"), "note");
  EXPECT_EQ(result.last_line(), "note");
  result.output = "";
  EXPECT_EQ(result.last_line("x"), "");
}

}  // namespace
}  // namespace carat
