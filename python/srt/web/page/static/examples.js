// Programs to begin with. Their facts are written out, since small models know none.

const MARA = "Mara Fox is 17 years old. Mara lives in Rome. Mara works as a sailor. Mara is brave.";

export const EXAMPLES = {
  "A text with holes": `${MARA}
Question: Where does Mara live?
Answer: {{gen name=city max_tokens=8 temperature=0 stop="\\n"}}
`,
  "A fork": `${MARA}
Question: What is the {{fork "age" "city" "role"}}?
Answer: {{gen name=fact max_tokens=8 temperature=0 stop="\\n"}}
`,
  "Several completions": `${MARA}
A line about Mara:{{gen name=line n=3 max_tokens=16 temperature=1 seed=1 stop="\\n"}}
`,
  "Choices": `${MARA}
Question: Is Mara brave?
Answer: {{gen name=answer choices=["yes","no"] temperature=0}}
`,
  "A pattern": `${MARA}
Question: How old is Mara?
Answer: {{gen name=age regex="[1-9][0-9]?" max_tokens=4 temperature=0}}
`,
};
