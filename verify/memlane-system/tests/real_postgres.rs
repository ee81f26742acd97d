//! PostgreSQL with psql and pgbench over TCP.

use std::time::Duration;

use memlane_system::real::postgres::{Cluster, Postgres};
use memlane_system::real::{LaneReport, SHORT_LIVED, Stage, Story, blob, sha256_of_file};

const NEEDS: &[&str] = &["postgres", "initdb", "psql", "pgbench"];

#[test]
fn pgbench_runs_and_the_books_balance() {
    let Some(story) = Story::new("pgbench", NEEDS) else {
        return;
    };
    let cluster = Cluster::new(&story);
    story.in_each_mode(|stage| {
        let postgres = Postgres::start(stage, &cluster);
        let fill = postgres.pgbench(stage, &["-i", "-s", "2", "-q"]);
        fill.lane.must_use_ring(&[SHORT_LIVED]);
        for protocol in ["simple", "extended", "prepared"] {
            let args = ["-c", "8", "-j", "2", "-t", "100", "-n", "-M", protocol];
            let done = postgres.pgbench(stage, &args);
            let text = done.stdout();
            assert!(text.contains("actually processed: 800/800"), "{text}");
            assert!(text.contains("failed transactions: 0 "), "{text}");
            done.lane.must_use_ring(&[SHORT_LIVED]);
        }
        let sums = "select (select sum(abalance) from pgbench_accounts) = \
                    (select sum(delta) from pgbench_history), count(*) from pgbench_history";
        assert_eq!(postgres.ask(stage, sums), "t|2400");
        let select = [
            "-c", "4", "-j", "2", "-T", "1", "-n", "-S", "-M", "prepared",
        ];
        postgres
            .pgbench(stage, &select)
            .lane
            .must_use_ring(&[SHORT_LIVED]);
        finish(postgres).must_use_ring(&[SHORT_LIVED]);
    });
}

#[test]
fn a_table_copied_in_and_out_has_the_same_hash() {
    let Some(story) = Story::new("pg-copy", NEEDS) else {
        return;
    };
    let cluster = Cluster::new(&story);
    let source = story.dir().join("rows.csv");
    std::fs::write(&source, rows(200_000)).expect("rows");
    let hash = sha256_of_file(&source);
    story.in_each_mode(|stage| {
        let postgres = Postgres::start(stage, &cluster);
        let there = format!("\\copy t from '{}' csv", source.display());
        let create = "drop table if exists t; create table t (n int, payload text)";
        let back = stage.dir().join("back.csv");
        let out = format!(
            "\\copy (select * from t order by n) to '{}' csv",
            back.display()
        );
        let done = postgres.psql(stage, &["-c", create, "-c", &there, "-c", &out]);
        assert_eq!(sha256_of_file(&back), hash);
        done.lane.must_use_ring(&[SHORT_LIVED]);

        one_big_value(stage, &postgres);
        finish(postgres).must_use_ring(&[SHORT_LIVED]);
    });
}

/// A single value of 8 MB, as a result row; md5 is computed by the server.
fn one_big_value(stage: &Stage, postgres: &Postgres) {
    let sql = "select string_agg(md5(i::text), '') from generate_series(1, 262144) i";
    let done = postgres.psql(stage, &["-c", sql]);
    let value = done.stdout();
    assert_eq!(value.trim_end().len(), 32 * 262_144);
    let md5_of_value = postgres.ask(stage, &format!("select md5(v) from ({sql}) s(v)"));
    let mut command = std::process::Command::new("md5sum");
    let file = stage.dir().join("value");
    std::fs::write(&file, value.trim_end()).expect("value");
    let out = command.arg(&file).output().expect("md5sum starts");
    assert!(String::from_utf8_lossy(&out.stdout).starts_with(&md5_of_value));
    done.lane.must_use_ring(&[SHORT_LIVED]);
}

fn rows(count: usize) -> String {
    let noise = blob(11, count * 8);
    let lines = noise.chunks(8).enumerate().map(|(n, bytes)| {
        let number = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        format!("{n},{number:016x}-{:080x}\n", u128::from(number) * 77)
    });
    lines.collect()
}

fn finish(postgres: Postgres) -> LaneReport {
    // Backends end a moment after their clients.
    std::thread::sleep(Duration::from_millis(100));
    postgres.finish()
}
