"""Loops over sequences, as lines of a script."""

import random

from tests.bench.family_parts import add_update, optimizer_of
from tests.bench.loop_parts import Lines


def truncated(lines: Lines, chance: random.Random) -> None:
    """Truncated backpropagation through time: consecutive pieces of a text, and the state before each."""
    batch, length, is_first = chance.choice((4, 6)), chance.choice((3, 5)), chance.random() < 0.4
    kind = chance.choice(("LSTM", "GRU"))
    lines.add(
        "",
        "class Net(nn.Module):",
        "    def __init__(self):",
        "        super().__init__()",
        "        self.embedding, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)",
        f"        self.body = nn.{kind}(8, 9, batch_first={is_first})",
        "        self.head = nn.Linear(9, 20)",
        "",
        "    def forward(self, inputs, state):",
        "        outputs, state = self.body(self.embedding(inputs), state)",
        "        return self.head(outputs), state",
        "",
        "def detached(state):",
        "    return tuple(map(detached, state)) if isinstance(state, tuple) else state.detach()",
        "",
        "model = Net()",
        f"optimizer = {optimizer_of(chance, 'model.parameters()')}",
        f"text = torch.randint(20, ({batch}, {6 * length + 1}))",
    )
    zeros = f"torch.zeros(1, {batch}, 9)"
    with lines.block("for epoch in range(2):"):
        lines.add(f"state = ({zeros}, {zeros})" if kind == "LSTM" else f"state = {zeros}")
        with lines.block(f"for begin in range(0, {6 * length}, {length}):"):
            lines.add("record.began()", f"inputs = text[:, begin : begin + {length}]")
            lines.add(f"targets = text[:, begin + 1 : begin + {length + 1}]")
            lines.add(*([] if is_first else ["inputs, targets = inputs.t(), targets.t()"]))
            lines.add("outputs, state = model(inputs, detached(state))")
            loss = "F.cross_entropy(outputs.flatten(0, 1), targets.flatten())"
            add_update(lines, loss, str(batch))
    lines.add("record.end(model)")


def translation(lines: Lines, chance: random.Random) -> None:
    """An encoder, and a decoder that is called for each word, with an optimizer each or one for both."""
    batch, has_two = chance.choice((1, 4)), chance.random() < 0.5
    lines.add(
        "",
        "class Encoder(nn.Module):",
        "    def __init__(self):",
        "        super().__init__()",
        "        self.body = nn.GRU(6, 8, batch_first=True)",
        "",
        "    def forward(self, inputs):",
        "        return self.body(inputs)[1][0]",
        "",
        "class Decoder(nn.Module):",
        "    def __init__(self):",
        "        super().__init__()",
        "        self.embedding, self.cell = nn.Embedding(10, 8), nn.GRUCell(8, 8)",
        "        self.head = nn.Linear(8, 10)",
        "",
        "    def forward(self, words, state):",
        "        state = self.cell(self.embedding(words), state)",
        "        return self.head(state), state",
        "",
        "encoder, decoder = Encoder(), Decoder()",
        "data = TensorDataset(torch.randn(26, 5, 6), torch.randint(10, (26, 4)))",
        f"loader = DataLoader(data, batch_size={batch}, shuffle=True)",
    )
    if has_two:
        lines.add(f"optimizer = {optimizer_of(chance, 'encoder.parameters()')}")
        lines.add(f"optimizer_d = {optimizer_of(chance, 'decoder.parameters()')}")
    else:
        owner = "[*encoder.parameters(), *decoder.parameters()]"
        lines.add(f"optimizer = {optimizer_of(chance, owner)}")
    with lines.block("for epoch in range(2):"):
        with lines.block("for inputs, targets in loader:"):
            lines.add("record.began()", "state, loss = encoder(inputs), 0.0")
            lines.add("words = torch.zeros(len(inputs), dtype=torch.long)")
            with lines.block("for target in targets.t():"):
                lines.add("outputs, state = decoder(words, state)")
                lines.add("loss = loss + F.cross_entropy(outputs, target)")
                lines.add("words = target if torch.rand(()) < 0.5 else outputs.argmax(1)")
            lines.add(*(["optimizer_d.zero_grad()"] if has_two else []))
            add_update(lines, "loss / 4", is_last=not has_two)
            lines.add(*(["optimizer_d.step()", "record.updated()"] if has_two else []))
        with lines.block("with record.evaluation(), torch.no_grad():"):
            lines.add("state, words = encoder(torch.randn(1, 5, 6)), torch.zeros(1, dtype=torch.long)")
            with lines.block("for _ in range(4):"):
                lines.add("outputs, state = decoder(words, state)", "words = outputs.argmax(1)")
    lines.add("record.end(encoder, decoder)")


def characters(lines: Lines, chance: random.Random) -> None:
    """A recurrent network that reads a word per step, one character after the other."""
    lines.add(
        "",
        "class Net(nn.Module):",
        "    def __init__(self):",
        "        super().__init__()",
        "        self.body, self.head = nn.Linear(14, 8), nn.Linear(14, 4)",
        "",
        "    def forward(self, inputs, state):",
        "        joined = torch.cat([inputs, state], 1)",
        "        return self.head(joined), self.body(joined).tanh()",
        "",
        "model = Net()",
    )
    has_optimizer = chance.random() < 0.5
    lines.add(*([f"optimizer = {optimizer_of(chance, 'model.parameters()')}"] if has_optimizer else []))
    with lines.block("for _ in range(12):"):
        lines.add("word, target = torch.randn(int(torch.randint(2, 7, ())), 1, 6), torch.randint(4, (1,))")
        lines.add("state = torch.zeros(1, 8)", *([] if has_optimizer else ["model.zero_grad()"]))
        with lines.block("for character in word:"):
            lines.add("outputs, state = model(character, state)")
        if has_optimizer:
            add_update(lines, "F.cross_entropy(outputs, target)", "None", is_clear=False)
        else:
            lines.add("loss = F.cross_entropy(outputs, target)", "loss.backward()")
            lines.add("for weight in model.parameters():", "    weight.data.sub_(0.01 * weight.grad)")
            lines.add("record.trained(None, loss)", "record.updated(is_clear=False)")
    lines.add("record.end(model)")


def language(lines: Lines, chance: random.Random) -> None:
    """A language model that draws its batches from a text, and generates some now and then."""
    batch, micro, ahead = chance.choice((4, 6)), chance.choice((1, 2, 4)), chance.random() < 0.4
    lines.add(
        "",
        "class Net(nn.Module):",
        "    def __init__(self):",
        "        super().__init__()",
        "        self.embedding, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)",
        "        self.body = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)",
        "",
        "    def forward(self, inputs, targets=None):",
        "        outputs = self.head(self.body(self.embedding(inputs)))",
        "        if targets is None:",
        "            return outputs, None",
        "        return outputs, F.cross_entropy(outputs.flatten(0, 1), targets.flatten())",
        "",
        "    @torch.no_grad()",
        "    def generate(self, words, count):",
        "        for _ in range(count):",
        "            outputs, _ = self(words[:, -8:])",
        "            words = torch.cat([words, outputs[:, -1:].argmax(2)], 1)",
        "",
        "def next_batch():",
        f"    begins = torch.randint(200 - 9, ({batch}, 1))",
        "    places = begins + torch.arange(9)",
        "    return text[places][:, :-1].contiguous(), text[places][:, 1:].contiguous()",
        "",
        "@torch.no_grad()",
        "def evaluate():",
        "    model.eval()",
        f"    for _ in range({chance.choice((2, 4))}):",
        "        model(*next_batch())",
        "    model.train()",
        "",
        "text, model = torch.randint(20, (200,)), Net()",
        f"optimizer = {optimizer_of(chance, 'model.parameters()')}",
        "inputs, targets = next_batch()",
    )
    with lines.block("for number in range(1, 13):"):
        lines.add(f"if number % {chance.choice((3, 4))} == 1:", "    with record.evaluation():")
        lines.add("        evaluate()", f"        model.generate(text[:1, None], {chance.choice((3, 10))})")
        with lines.block(f"for _ in range({micro}):"):
            lines.add(*([] if ahead else ["inputs, targets = next_batch()"]))
            lines.add("record.began()", f"loss = model(inputs, targets)[1] / {micro}")
            lines.add(*(["inputs, targets = next_batch()"] if ahead else []))
            lines.add("loss.backward()", f"record.trained({batch}, loss)")
        lines.add("nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "optimizer.step()", "record.updated()")
        lines.add("optimizer.zero_grad()")
    lines.add("record.end(model)")


SEQUENCE_FAMILIES = {
    "truncated backpropagation": truncated,
    "translation": translation,
    "characters": characters,
    "language": language,
}
