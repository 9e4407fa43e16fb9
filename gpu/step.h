#pragma once

namespace hayloft::gpu {

// Stands for one step of decoding, which the thread that begins it queues on Backend::stream() part by part. A device
// may hold back what makes up a part, to be given several parts at once. Nobody sees that but for the time it takes,
// and for where something is thrown that the device refuses: by a later operation of the step, and by each behind that.
class Step {
 public:
  Step() = default;
  virtual ~Step() = default;  // queues what is held back, if the step has not ended, and throws nothing
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  // Throw what the device throws.
  virtual void part_ends() = 0;
  virtual void ends() = 0;  // all of it is queued, and what it leaves may be committed; nothing is held from here on
};

}  // namespace hayloft::gpu
