use super::client::Client;
#[test]
fn x() {
    for mut c in Client::each() {
        c.says("set a 0 0 1|x", "STORED");
        c.says("get a", "VALUE a 0 1|x|END");
    }
}
