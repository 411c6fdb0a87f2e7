//! Conversations through the shapes of others and back.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use temper_core::{Message, Role, ToolCall, message::Tool};
use temper_dataset::{
    formats::{
        Conversation, FormatError, Preference, messages, parquet::MessagesWriter, sharegpt, trl,
    },
    rows::RowReader,
};

fn call(id: &str, arguments: &str) -> ToolCall {
    ToolCall {
        id: id.to_owned(),
        name: "wait".to_owned(),
        arguments: arguments.to_owned(),
    }
}

fn calls(arguments: &str) -> Conversation {
    let assistant = Message {
        tool_calls: vec![call("c1", arguments)],
        ..Message::text(Role::Assistant, "")
    };
    let answer = Message {
        tool_call_id: Some("c1".to_owned()),
        ..Message::text(Role::Tool, "ok")
    };
    Conversation {
        instance_id: Some("t".to_owned()),
        messages: vec![Message::text(Role::User, "Go."), assistant, answer],
        tools: vec![Tool {
            name: "wait".to_owned(),
            description: "Waits.".to_owned(),
            parameters: json!({"type": "object", "properties": {"time": {}, "zeta": {}, "alpha": {}}}),
        }],
    }
}

/// Text with everything that could get lost.
fn plain() -> Conversation {
    Conversation {
        instance_id: None,
        messages: vec![
            Message::text(Role::System, ""),
            Message::text(Role::User, "<|im_end|>\n\u{0}\u{2028}\"\\ {{ x }}"),
            Message::text(Role::Assistant, "```bash\nls\n```"),
            Message::text(Role::User, "é😀\r\n"),
            Message::text(Role::Assistant, " "),
        ],
        tools: Vec::new(),
    }
}

/// Arguments whose keys, order, types, nulls and spelling must all come back.
const ARGUMENTS: [&str; 8] = [
    r#"{"time":"5"}"#,
    r#"{"time":5,"unit":null}"#,
    r#"{"zeta":1,"alpha":[{"b":1,"a":null},{}]}"#,
    r#"{"x": 1}"#,
    r#"{"x":1e5,"y":1.0,"z":12345678901234567890123}"#,
    r#"{"x":1,"x":2}"#,
    r#"{"command":"ls"#,
    "{}",
];

#[test]
fn trl_rows_read_back_equal() {
    for arguments in ARGUMENTS {
        let conversation = calls(arguments);
        let text = trl::to_json(&conversation).to_string();
        let back = trl::from_json(&serde_json::from_str(&text).unwrap()).unwrap();
        assert_eq!(back, conversation, "{arguments}");
    }
    let conversation = Conversation {
        messages: vec![Message {
            reasoning: Some("hm".to_owned()),
            ..Message::text(Role::Assistant, "x")
        }],
        ..Conversation::default()
    };
    for conversation in [plain(), conversation] {
        let back = trl::from_json(&trl::to_json(&conversation)).unwrap();
        assert_eq!(back, conversation);
    }
}

#[test]
fn each_call_keeps_its_own_keys_and_types() {
    let rows: Vec<Value> = ARGUMENTS[..3]
        .iter()
        .map(|arguments| trl::to_json(&calls(arguments)))
        .collect();
    let arguments =
        |row: &Value| row["messages"][1]["tool_calls"][0]["function"]["arguments"].clone();
    assert_eq!(arguments(&rows[0]), json!({"time": "5"}));
    assert_eq!(arguments(&rows[1]), json!({"time": 5, "unit": null}));
    assert!(arguments(&rows[0]).get("unit").is_none());
    // What is no object, or would be spelled otherwise, stays text.
    assert!(arguments(&trl::to_json(&calls(ARGUMENTS[3]))).is_string());
}

#[test]
fn preferences_read_back_equal() {
    let conversation = calls(ARGUMENTS[1]);
    let preference = Preference {
        prompt: conversation.messages[..1].to_vec(),
        chosen: conversation.messages[1..].to_vec(),
        rejected: vec![Message::text(Role::Assistant, "No.")],
        tools: conversation.tools,
    };
    let row = trl::preference_to_json(&preference);
    assert_eq!(trl::preference_from_json(&row).unwrap(), preference);
    assert!(trl::preference_from_json(&json!({"prompt": [], "chosen": []})).is_err());
}

#[test]
fn sharegpt_rows_read_back_equal_or_are_refused() {
    for arguments in ARGUMENTS {
        let mut conversation = calls(arguments);
        conversation.messages[1].tool_calls[0].id.clear();
        conversation.messages[2].tool_call_id = None;
        let text = sharegpt::to_json(&conversation).unwrap().to_string();
        let back = sharegpt::from_json(&serde_json::from_str(&text).unwrap()).unwrap();
        assert_eq!(back, conversation, "{arguments}");
    }
    assert_eq!(
        sharegpt::from_json(&sharegpt::to_json(&plain()).unwrap()).unwrap(),
        plain()
    );
    let error = sharegpt::to_json(&calls("{}")).unwrap_err();
    assert!(matches!(error, FormatError::NoPlace { .. }), "{error}");
    let mut late_system = plain();
    late_system.messages.push(Message::text(Role::System, "x"));
    assert!(sharegpt::to_json(&late_system).is_err());
}

#[test]
fn published_rows_read_back_equal_or_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let lines = directory.path().join("rows.jsonl");
    std::fs::write(
        &lines,
        format!("{}\n", messages::to_json(&plain()).unwrap()),
    )
    .unwrap();
    let parquet = directory.path().join("rows.parquet");
    let mut writer = MessagesWriter::new(std::fs::File::create(&parquet).unwrap()).unwrap();
    writer
        .row(None, messages::pairs(&plain()).unwrap())
        .unwrap();
    writer.finish().unwrap();
    for path in [lines, parquet] {
        let mut reader = RowReader::open(&path).unwrap();
        let raw = reader.next_row().unwrap().unwrap();
        let back = messages::from_row(&raw.parse().unwrap()).unwrap();
        assert_eq!(back, plain(), "{}", path.display());
    }
    assert!(messages::to_json(&calls("{}")).is_err());
}
