"""Leak detection: trend tests of each memory series, attribution among the series, and sentences.

The order of decisions on a reading (`LeakDetector.judge`):

1. `history` and `trend` reduce each series to block minima and test their trend; `growth` makes a verdict of
   that, and `onset` finds the step at which a growth began. `variation` sets how many readings it takes:
   more where steps differ in size.
2. Live memory that is rarely read is judged by the memory of the whole process instead.
3. `needs`: growth beside transient memory that grows as fast is that of the inputs.
4. `refill`: after a trim of the heap its pages return.
5. `settling`: holes and the process grow until each step finds room in the heap.
6. The detector attributes growth to one series: what holes explain is no leak of the host, and what live
   tensors explain is none of the others.
7. `headroom` states the steps that are left, by `approach` where inputs grow; `wording` makes sentences.

Steps 3 to 6 only withdraw or weaken a verdict.
"""
