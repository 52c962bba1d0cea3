// The JSON schemas of tools: their description, their parameters, and an example of their arguments.

import type { Tool } from "../gen/mnemesh/tools/v1/tools_pb";

export interface Parameter {
  name: string;
  type: string;
  description: string;
  isRequired: boolean;
}

export interface FunctionSchema {
  name: string;
  description: string;
  parameters: Parameter[];
}

type Json = { [key: string]: unknown };

function isObject(value: unknown): value is Json {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function textIn(value: Json, key: string): string {
  const found = value[key];
  return typeof found === "string" ? found : "";
}

/** Returns a schema of the form {"name", "description", "parameters"}; undefined if the text is something else. */
export function parseSchema(text: string): FunctionSchema | undefined {
  let parsed: unknown;
  try {
    parsed = JSON.parse(text);
  } catch {
    return undefined;
  }
  if (!isObject(parsed)) {
    return undefined;
  }
  const root = isObject(parsed.parameters) ? parsed.parameters : {};
  const properties = isObject(root.properties) ? root.properties : {};
  const required = Array.isArray(root.required) ? root.required : [];
  const parameters = Object.entries(properties).map(([name, value]) => ({
    name,
    type: isObject(value) ? typeOf(value) : "any",
    description: isObject(value) ? textIn(value, "description") : "",
    isRequired: required.includes(name),
  }));
  return { name: textIn(parsed, "name"), description: textIn(parsed, "description"), parameters };
}

/** Returns a type as people write it: "string", "array of integer", "string or null". */
function typeOf(schema: Json): string {
  const choices = Array.isArray(schema.anyOf) ? schema.anyOf : Array.isArray(schema.oneOf) ? schema.oneOf : [];
  if (choices.length > 0) {
    return choices.map((choice) => (isObject(choice) ? typeOf(choice) : "any")).join(" or ");
  }
  if (Array.isArray(schema.type)) {
    return schema.type.join(" or ");
  }
  const type = textIn(schema, "type") || "any";
  return type === "array" && isObject(schema.items) ? `array of ${typeOf(schema.items)}` : type;
}

export function descriptionOf(tool: Tool): string {
  return tool.description ?? parseSchema(tool.jsonSchema)?.description ?? "";
}

/** Returns arguments to begin with, as JSON text: one value of the right type for each required parameter. */
export function exampleArguments(schema: FunctionSchema): string {
  const values = schema.parameters.filter(({ isRequired }) => isRequired).map(({ name, type }) => [name, example(type)]);
  return JSON.stringify(Object.fromEntries(values), null, 2);
}

function example(type: string): unknown {
  switch (type.split(" ")[0]) {
    case "integer":
    case "number":
      return 1;
    case "boolean":
      return true;
    case "array":
      return [];
    case "object":
      return {};
    default:
      return "";
  }
}
