//! Whole reports.

use super::*;

#[test]
#[ignore = "writes a report to look at into the directory that LINERATE_SAMPLE names"]
fn a_sample_to_look_at() {
    let dir = PathBuf::from(std::env::var_os("LINERATE_SAMPLE").expect("LINERATE_SAMPLE"));
    let results = fixture::results();
    write(&results, &dir).unwrap();
    std::fs::write(dir.join("terminal.txt"), terminal(&results)).unwrap();
    let mut other = fixture::results();
    other.machine.kernel = "Linux 6.1".to_owned();
    other.rows.remove(3);
    std::fs::write(dir.join("diff.txt"), diff(&results, &other)).unwrap();
}
