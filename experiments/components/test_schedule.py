from electra_lab.testing import ScheduleContract


class TestMySchedule(ScheduleContract):
    name, options = "my_schedule", {"start": 1.0, "end": 0.0}
