//! How many ticks make a microsecond.

use memlane_sys::time::{Moment, measure_ticks_per_us, ticks_per_us_since};
use std::thread;
use std::time::Duration;

#[test]
fn a_microsecond_has_as_many_ticks_each_time_also_where_threads_lose_their_cpus() {
    let usual = measure_ticks_per_us();
    let crowd: Vec<_> = (0..64)
        .map(|_| thread::spawn(measure_ticks_per_us))
        .collect();
    for one in crowd {
        let measured = one.join().expect("a measure");
        let differs = measured.abs_diff(usual);
        assert!(differs <= usual / 20 + 1, "{measured} {usual}");
    }
}

#[test]
fn a_microsecond_has_as_many_ticks_by_an_earlier_moment_and_by_one_that_is_too_old() {
    let usual = measure_ticks_per_us();
    let begin = Moment::now();
    thread::sleep(Duration::from_millis(20));
    let recent = ticks_per_us_since(begin);
    thread::sleep(Duration::from_millis(1100));
    let too_old = [ticks_per_us_since(begin), ticks_per_us_since(Moment::NEVER)];
    for measured in [recent, too_old[0], too_old[1]] {
        let differs = measured.abs_diff(usual);
        assert!(differs <= usual / 20 + 1, "{measured} {usual}");
    }
}
