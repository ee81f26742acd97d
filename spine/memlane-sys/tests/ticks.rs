//! How many ticks make a microsecond.

use memlane_sys::time::measure_ticks_per_us;
use std::thread;

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
