#include "runtime/plan/expert_division.h"

#include <gtest/gtest.h>

#include "tests/runtime/plan/planned.h"

namespace hayloft::runtime::plan {
namespace {

// The shape of a mixture with 30 thousand million weights of 5 bits, beside 256k tokens.
PlanRequest mixture(std::uint64_t device_gigabytes, const char* method) {
  PlanRequest request = llama_3_8b();
  request.config = config_of_shape({48, 32, 4, 128, 2048, 768, 151936});
  request.config.experts.count = 128;
  request.config.experts.used = 8;
  request.config.experts.inner = 768;
  request.config.intermediate_size = 8 * 768;
  request.weights = weight_sizes(request.config, gpu::DType::f16, WeightForm::q4);
  request.methods = {parse_method(method, {})};
  request.tokens = 256 << 10;
  request.device_budget = device_gigabytes << 30;
  request.experts = ExpertPlace::link;
  return request;
}

std::uint64_t over_link(PlanRequest request, int kept) {
  request.placed_experts->kept = kept;
  const Plan plan = make_plan(request, nullptr);
  const PlannedMethod& method = plan.methods.front();
  return plan.experts->link_bytes + (method.cache ? method.cache->link_bytes : method.counters.total(Place::link));
}

TEST(DeviceDivision, KeepsAsManyExpertsAsMakeLeastCrossTheLink) {
  for (const char* method : {"dense", "sparq:r=16:k=128", "window:k=30"}) {
    SCOPED_TRACE(method);
    PlanRequest request = mixture(16, method);
    request.placed_experts = divide_device(request);
    ASSERT_EQ(request.placed_experts->place, ExpertPlace::link);
    const int kept = request.placed_experts->kept;
    const std::uint64_t least = over_link(request, kept);
    for (int other = 0; other < 128; other += 3) {
      PlanRequest with = request;
      with.placed_experts->kept = other;
      if (make_plan(with, nullptr).memory.device() <= request.device_budget / 8 * 7) {
        EXPECT_LE(least, over_link(request, other)) << other;
      }
    }
  }
}

TEST(DeviceDivision, ColumnsThatAreReadTakeMemoryFromExperts) {
  EXPECT_LT(divide_device(mixture(16, "sparq:r=16:k=128")).kept, divide_device(mixture(16, "dense")).kept);
}

TEST(DeviceDivision, ExpertsWithFavouritesLeaveMoreToColumns) {
  PlanRequest request = mixture(16, "sparq:r=16:k=128");
  const int alike = divide_device(request).kept;
  request.experts_held.measured = {{0.125, 0.95}};
  EXPECT_LT(divide_device(request).kept, alike);
}

TEST(DeviceDivision, LeavesRoomForTheRestOfTheRun) {
  for (const std::uint64_t gigabytes : {5, 6, 8, 12}) {
    PlanRequest request = mixture(gigabytes, "sparq:r=16:k=128");
    EXPECT_EQ(make_plan(request, nullptr).shortfall, "") << gigabytes;
  }
}

TEST(DeviceDivision, SessionsOfSeveralClientsTakeMemoryFromExperts) {
  PlanRequest request = mixture(8, "dense");
  const PlanMemory alone = make_plan(request, nullptr).memory;
  const int kept = divide_device(request).kept;
  request.sessions = 8;
  EXPECT_EQ(make_plan(request, nullptr).memory.question, 8 * alone.question);
  EXPECT_EQ(make_plan(request, nullptr).shortfall, "");
  EXPECT_LT(divide_device(request).kept, kept);
}

TEST(DeviceDivision, IsByTheRatesOfTheMachine) {
  PlanRequest request = mixture(16, "dense");
  request.experts = ExpertPlace::automatic;
  request.expert_rates = {20, 60};
  EXPECT_EQ(divide_device(request).place, ExpertPlace::link);
  request.expert_rates = {200, 10};
  EXPECT_EQ(divide_device(request).place, ExpertPlace::near);
  MachineProfile profile;
  profile.near_read = 30;
  EXPECT_EQ(expert_rates(&profile).link, ExpertRates{}.link);  // of a machine without a device
  profile.link_to_device = 12;
  EXPECT_EQ(expert_rates(&profile).near, 30);
  EXPECT_EQ(expert_rates(&profile).link, 12);
}

TEST(DeviceDivision, IsPrinted) {
  const Plan plan = make_plan(mixture(16, "sparq:r=16:k=128"), nullptr);
  EXPECT_NE(plan_table(plan).find("least crosses the link by sparq r=16 k=128"), std::string::npos);
}

}  // namespace
}  // namespace hayloft::runtime::plan
