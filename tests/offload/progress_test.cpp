#include "offload/progress.h"

#include <gtest/gtest.h>

#include <string>

namespace hayloft::runtime {
namespace {

// A sink whose clock stands still until told otherwise.
struct Recorder {
  std::string text;
  double now = 100;

  ProgressSink sink(bool terminal) {
    return {[this](std::string_view more) { text += more; }, [this] { return now; }, terminal};
  }
  std::string take() { return std::exchange(text, {}); }
};

TEST(Progress, ALogGetsALineForEveryTenthOfTheWork) {
  Recorder recorder;
  Progress progress(recorder.sink(false), "prefill 1k", "tokens", 1000);
  recorder.now += 1;
  progress.update(99);
  EXPECT_EQ(recorder.take(), "");
  recorder.now += 1;
  progress.update(200);
  EXPECT_EQ(recorder.take(), "prefill 1k: 200 of 1000 tokens (20%), 100 tokens/s, 0:08 left\n");
  progress.update(201);
  EXPECT_EQ(recorder.take(), "");
}

TEST(Progress, ALogGetsALineAfterFifteenSecondsOfLittleProgress) {
  Recorder recorder;
  Progress progress(recorder.sink(false), "prefill", "tokens", 1000);
  recorder.now += 14.9;
  progress.update(1);
  EXPECT_EQ(recorder.take(), "");
  recorder.now += 0.1;
  progress.update(15);
  EXPECT_EQ(recorder.take(), "prefill: 15 of 1000 tokens (1%), 1 tokens/s, 16:25 left\n");
}

TEST(Progress, WorkThatIsOverWithinASecondLeavesNoTraceInALog) {
  Recorder recorder;
  Progress progress(recorder.sink(false), "prefill", "tokens", 1000);
  for (int done = 100; done <= 1000; done += 100) {
    recorder.now += 0.05;
    progress.update(done);
  }
  EXPECT_EQ(recorder.take(), "");
}

TEST(Progress, WhatAnEarlierRunHasDoneDoesNotCountForTheRate) {
  Recorder recorder;
  Progress progress(recorder.sink(false), "ingest", "tokens", 1000, 400);
  recorder.now += 2;
  progress.update(600);
  EXPECT_EQ(recorder.take(), "ingest: 600 of 1000 tokens (60%), 100 tokens/s, 0:04 left\n");
}

TEST(Progress, TheLastLineOfALogSaysHowLongItTook) {
  Recorder recorder;
  Progress progress(recorder.sink(false), "prefill", "tokens", 1000);
  recorder.now += 3700;
  progress.update(1000);
  EXPECT_EQ(recorder.take(), "prefill: 1000 of 1000 tokens (100%), 0.27 tokens/s, took 1:01:40\n");
}

TEST(Progress, ATerminalLineIsRewrittenAtMostTenTimesASecondAndClearedAtTheEnd) {
  Recorder recorder;
  Progress progress(recorder.sink(true), "prefill", "tokens", 1000);
  recorder.now += 1;
  progress.update(500);
  EXPECT_EQ(recorder.take(),
            "\rprefill [############............] 500 of 1000 tokens (50%), 500 tokens/s, 0:01 left\x1b[K");
  recorder.now += 0.05;
  progress.update(510);
  EXPECT_EQ(recorder.take(), "");
  recorder.now += 0.1;
  progress.update(520);
  EXPECT_NE(recorder.take().find("520 of 1000"), std::string::npos);
  progress.update(1000);
  EXPECT_EQ(recorder.take(), "\r\x1b[K");
}

TEST(Progress, WorkThatStopsEarlyLeavesNoHalfLineOnTheTerminal) {
  Recorder recorder;
  {
    Progress progress(recorder.sink(true), "prefill", "tokens", 1000);
    recorder.now += 1;
    progress.update(500);
    recorder.take();
  }
  EXPECT_EQ(recorder.take(), "\r\x1b[K");
}

}  // namespace
}  // namespace hayloft::runtime
