"""Asks hayloft serve by langchain-openai and openai-agents as they come: chats, streams, tools, structured output."""
import asyncio
import json
import typing

import pydantic

QUESTION = "What is the capital of France? Answer in one word."


class City(pydantic.BaseModel):
    """A city."""
    name: str
    population: int
    river: typing.Optional[str]


def check_frameworks(address, check):
    for part in (check_langchain, check_langchain_responses, check_agents):
        try:
            part(address + "/v1", check)
        except Exception as error:  # a check that could not be made is one that failed
            check(part.__name__, False, f"{type(error).__name__}: {error}"[:1000])


def langchain_model(address, **options):
    import openai
    from langchain_openai import ChatOpenAI
    name = openai.OpenAI(base_url=address, api_key="none").models.list().data[0].id
    return ChatOpenAI(base_url=address, api_key="none", model=name, temperature=0, max_retries=0, timeout=600, **options)


def check_langchain(address, check):
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
    from langchain_core.tools import tool

    @tool
    def weather(city: typing.Literal["Paris", "Rome"]) -> str:
        """Tells the weather of a city."""
        return f"sunny in {city}"

    model = langchain_model(address, max_completion_tokens=64)
    said = model.invoke([SystemMessage("Be brief."), HumanMessage(QUESTION)])
    check("langchain-openai: chat", "Paris" in said.content and said.usage_metadata["input_tokens"] > 0, said)
    pieces = list(model.stream([SystemMessage("Be brief."), HumanMessage(QUESTION)]))
    check("langchain-openai: a stream is the same text", "".join(piece.content for piece in pieces) == said.content and len(pieces) > 1, pieces)
    several = model.batch([QUESTION, "Say hay."])
    check("langchain-openai: a batch", len(several) == 2 and "Paris" in several[0].content, several)
    asked = asyncio.run(model.ainvoke(QUESTION))
    check("langchain-openai: asynchronous", "Paris" in asked.content, asked)

    calling = model.bind_tools([weather], tool_choice="weather", strict=True)
    question = HumanMessage("What is the weather in Paris?")
    called = calling.invoke([question])
    call = called.tool_calls[0] if called.tool_calls else {}
    check("langchain-openai: a call of a tool", call.get("name") == "weather" and call["args"]["city"] in ("Paris", "Rome") and not called.invalid_tool_calls, called)
    whole, chunks = None, 0
    for piece in calling.stream([question]):
        whole = piece if whole is None else whole + piece
        chunks += bool(piece.tool_call_chunks)
    check("langchain-openai: a call is streamed", chunks > 2 and whole.tool_calls and whole.tool_calls[0]["args"] == call["args"] and not whole.content, whole)
    result = ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])
    answered = model.bind_tools([weather]).invoke([question, AIMessage("", tool_calls=called.tool_calls), result])
    check("langchain-openai: the result of a tool", isinstance(answered, AIMessage), answered)

    for method in ("json_schema", "function_calling", "json_mode"):
        described = QUESTION if method != "json_mode" else QUESTION + " Answer as JSON."
        structured = model.bind(max_completion_tokens=400).bound.with_structured_output(
            City if method != "json_mode" else None, method=method, **({"strict": True} if method != "json_mode" else {}))
        city = structured.invoke(described)
        check(f"langchain-openai: structured output, {method}", isinstance(city, City if method != "json_mode" else dict), city)


def check_langchain_responses(address, check):
    model = langchain_model(address, use_responses_api=True, max_tokens=64)
    said = model.invoke(QUESTION)
    text = said.text if isinstance(said.text, str) else said.text()
    check("langchain-openai: responses", "Paris" in text, said)
    pieces = list(model.stream(QUESTION))
    check("langchain-openai: responses, streamed", len(pieces) > 1, pieces)
    city = model.with_structured_output(City, method="json_schema", strict=True).invoke(QUESTION)
    check("langchain-openai: responses, structured output", isinstance(city, City), city)


def check_agents(address, check):
    import openai
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
    set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=address, api_key="none", max_retries=0, timeout=600)
    calls = []

    @function_tool
    def weather(city: typing.Literal["Paris", "Rome"]) -> str:
        """Tells the weather of a city."""
        calls.append(city)
        return f"sunny in {city}"

    async def ask(kind, model):
        plain = Agent(name="plain", instructions="Be brief.", model=model, model_settings=ModelSettings(temperature=0, max_tokens=64))
        said = await Runner.run(plain, QUESTION)
        check(f"openai-agents, {kind}: chat", "Paris" in said.final_output, said.final_output)
        streamed = Runner.run_streamed(plain, QUESTION)
        text = ""
        async for event in streamed.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                text += event.data.delta
        check(f"openai-agents, {kind}: a stream is the same text", text == said.final_output == streamed.final_output, (text, said.final_output))
        more = await Runner.run(plain, said.to_input_list() + [{"role": "user", "content": "And of Italy?"}])
        check(f"openai-agents, {kind}: a second turn", bool(more.final_output), more.final_output)

        before = len(calls)
        caller = Agent(name="caller", instructions="Call weather.", model=model, tools=[weather],
                       model_settings=ModelSettings(temperature=0, max_tokens=100, tool_choice="required"))
        answered = await Runner.run(caller, "What is the weather in Paris?", max_turns=4)
        check(f"openai-agents, {kind}: a tool is called and answered", len(calls) > before and isinstance(answered.final_output, str), answered.final_output)
        streamed = Runner.run_streamed(caller, "What is the weather in Paris?", max_turns=4)
        deltas, ended = {}, False
        async for event in streamed.stream_events():
            if event.type != "raw_response_event":
                continue
            if event.data.type == "response.function_call_arguments.delta" and not ended:
                deltas.setdefault(event.data.output_index, []).append(event.data.delta)
            ended = ended or event.data.type == "response.completed"  # the first of its answers
        check(f"openai-agents, {kind}: a call is streamed", deltas and all(len(each) > 2 and "city" in json.loads("".join(each)) for each in deltas.values()), deltas)

        typed = Agent(name="typed", instructions="Answer as JSON.", model=model, output_type=City, model_settings=ModelSettings(temperature=0, max_tokens=400))
        city = (await Runner.run(typed, QUESTION)).final_output
        check(f"openai-agents, {kind}: structured output", isinstance(city, City), city)
        before = len(calls)
        either = Agent(name="either", instructions="Call weather.", model=model, tools=[weather], output_type=City,
                       tool_use_behavior="stop_on_first_tool", model_settings=ModelSettings(temperature=0, max_tokens=400))
        said = (await Runner.run(either, "What is the weather in Paris?")).final_output
        check(f"openai-agents, {kind}: a tool beside structured output", len(calls) > before or isinstance(said, City), said)

    async def both():
        name = (await client.models.list()).data[0].id
        await ask("chat completions", OpenAIChatCompletionsModel(model=name, openai_client=client))
        await ask("responses", OpenAIResponsesModel(model=name, openai_client=client))

    asyncio.run(both())
